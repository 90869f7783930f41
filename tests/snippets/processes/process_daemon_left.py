import multiprocessing
import time


def work(event):
    event.set()
    time.sleep(30)
    print("never")


context = multiprocessing.get_context("fork")
event = context.Event()
context.Process(target=work, args=(event,), daemon=True).start()
event.wait()
print("main ends")
