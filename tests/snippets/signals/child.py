import os
import signal
import subprocess

ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append("child"))
print(subprocess.run(["false"]).returncode, ended)
pid = os.fork()
if pid == 0:
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(ended))
