import os
import signal
import time


def work():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


try:
    work()
finally:
    print("cleans up")
