import _io
import atexit
import gc
import os
import sys
import threading
import traceback


def broken(*arguments, **more):
    print("called", len(arguments))
    raise RuntimeError("broken on purpose")


atexit._run_exitfuncs = gc.collect = gc.get_objects = os._exit = os.write = os.read = os.getpid = broken
traceback.print_exception = traceback.format_exception = sys.exit = os.close = os.kill = broken
gc.freeze = gc.disable = gc.enable = threading.current_thread = threading.enumerate = broken
_io.open = os.fork = os.waitpid = os.getppid = sys._getframe = broken
file = open("kept.txt", "w")
file.write("kept")
print("the end")
