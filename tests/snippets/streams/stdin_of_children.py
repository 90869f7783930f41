import os
import subprocess
import sys

print(subprocess.run(["cat"], capture_output=True).stdout)
print(subprocess.run([sys.executable, "-c", "input()"], capture_output=True, text=True).stderr.splitlines()[-1])
print(os.system("read line; echo status $?"))
