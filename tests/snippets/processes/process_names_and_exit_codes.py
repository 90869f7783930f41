import multiprocessing
import os
import sys


def end(how):
    if how == "signal":
        os.kill(os.getpid(), 15)
    elif how == "error":
        raise ValueError("in the child")
    else:
        sys.exit(how)


context = multiprocessing.get_context("fork")
for how in 0, 3, "text", "error", "signal":
    process = context.Process(target=end, args=(how,))
    process.start()
    process.join()
    print(process.name, how, process.exitcode)
