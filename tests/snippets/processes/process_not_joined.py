import multiprocessing
import time


def work():
    time.sleep(0.1)
    print("waited for")


multiprocessing.get_context("fork").Process(target=work).start()
print("main ends")
