import multiprocessing
import os
import sys

print("module runs as", __name__)


def work(queue, n):
    queue.put((n, __name__, sys.argv, os.getcwd(), work.__module__))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue, 5))
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
