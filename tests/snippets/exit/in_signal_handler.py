import os
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
os.kill(os.getpid(), signal.SIGTERM)
print("never")
