import threading
import time


def work():
    print("started")
    started.set()
    time.sleep(30)
    print("never")


started = threading.Event()
threading.Thread(target=work, daemon=True).start()
started.wait()
print("main ends")
