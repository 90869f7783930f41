import sys
import threading

thread = threading.Thread(target=lambda: sys.exit(7))
thread.start()
thread.join()
print("the thread alone ended")
