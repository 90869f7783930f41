# differs: stdout: below the program there is one frame of the fork server
import faulthandler
import sys


def inner():
    faulthandler.dump_traceback(file=sys.stdout, all_threads=False)


def outer():
    inner()


outer()
