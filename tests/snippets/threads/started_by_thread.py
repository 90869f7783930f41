import threading
import time


def chain(n):
    time.sleep(0.02)
    print("link", n)
    if n:
        threading.Thread(target=chain, args=(n - 1,)).start()


threading.Thread(target=chain, args=(3,)).start()
print("main ends")
