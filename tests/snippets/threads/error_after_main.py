import threading
import time


def work():
    time.sleep(0.05)
    raise ValueError("after main")


threading.Thread(target=work, name="late").start()
