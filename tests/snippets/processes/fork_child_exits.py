import os
import sys

pid = os.fork()
if pid == 0:
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.exit(7)
