import faulthandler
import sys


def inner():
    faulthandler.dump_traceback(file=sys.stdout, all_threads=False)


def outer():
    inner()


outer()
