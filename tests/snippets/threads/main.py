import os
import threading

main = threading.main_thread()
print(main.name, main.ident == threading.get_ident(), main.native_id == os.getpid() == threading.get_native_id())
print(main is threading.current_thread(), main.daemon, main.is_alive(), type(main).__name__)
print(threading.active_count(), [thread.name for thread in threading.enumerate()], threading.stack_size())
print(threading.gettrace(), threading.getprofile(), len(os.listdir("/proc/self/task")))
thread = threading.Thread(target=lambda: None)
print(thread.name)
