import atexit
import os
import sys

sys.stdout.buffer.write(b"unbuffered by the environment\n")
atexit.register(print, "never")
os._exit(4)
