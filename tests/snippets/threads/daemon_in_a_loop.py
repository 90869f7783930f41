import threading
import time


def work():
    while True:
        sum(range(100))


for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("main ends")
