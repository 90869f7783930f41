import os
import signal


def handler(number, frame):
    raise RuntimeError("in the handler")


signal.signal(signal.SIGUSR1, handler)
os.kill(os.getpid(), signal.SIGUSR1)
print("never")
