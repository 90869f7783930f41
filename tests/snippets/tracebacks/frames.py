import sys
import traceback


def fail():
    raise ValueError("here")


try:
    fail()
except ValueError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
    print(error.__traceback__.tb_lineno, error.__traceback__.tb_frame is sys._getframe())
    print(traceback.format_exception_only(error))
    print("".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()))
