import atexit
import os
import sys

atexit.register(lambda: print("atexit of the", "parent" if os.getpid() == parent else "child"))
parent = os.getpid()
if os.fork() == 0:
    sys.exit(0)
os.wait()
