import os
import signal
import threading
import time


def work():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    print("the thread goes on")


threading.Thread(target=work).start()
print("main ends")
