import threading
import time

threading.Thread(target=lambda: (time.sleep(0.05), print("finished all the same"))).start()
raise ValueError("main fails")
