import atexit
import os
import subprocess


def late():
    print(subprocess.run(["echo", "child"], capture_output=True).stdout)
    try:
        print(os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(3), 0)[1]))
    except Exception as error:
        print(type(error).__name__, error)


atexit.register(late)
