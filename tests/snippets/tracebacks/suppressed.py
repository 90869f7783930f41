import traceback


def fail(suppress):
    try:
        1 / 0
    except ZeroDivisionError:
        error = RuntimeError("shown alone")
        error.__suppress_context__ = suppress
        raise error


for suppress in False, True:
    try:
        fail(suppress)
    except RuntimeError:
        print(traceback.format_exc())
try:
    [][0]
except IndexError:
    raise LookupError("from None") from None
