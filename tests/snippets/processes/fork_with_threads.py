import os
import threading
import warnings

warnings.simplefilter("always")
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
pid = os.fork()
if pid == 0:
    print("in the child", threading.active_count(), thread.is_alive())
    os._exit(0)
os.waitpid(pid, 0)
done.set()
