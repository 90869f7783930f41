import atexit
import sys
import traceback


def report():
    print(repr(sys.last_exc), sys.last_type, sys.last_value is sys.last_exc)
    for frame in traceback.extract_tb(sys.last_traceback):
        print(frame.name, frame.lineno, frame.line)


print(hasattr(sys, "last_exc"), hasattr(sys, "last_value"), sys.exc_info(), sys.exception())
atexit.register(report)


def fail():
    raise KeyError("remembered")


fail()
