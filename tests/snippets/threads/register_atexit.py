import atexit
import threading

atexit.register(print, "atexit")
threading._register_atexit(print, "before the threads are waited for")
thread = threading.Timer(0.05, print, ["thread"])
thread.start()
print("main ends")
