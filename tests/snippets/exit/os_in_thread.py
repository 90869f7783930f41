import os
import threading
import time

threading.Thread(target=lambda: os._exit(8)).start()
time.sleep(30)
