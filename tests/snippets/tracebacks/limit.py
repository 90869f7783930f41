import sys

sys.tracebacklimit = 1


def inner():
    raise ValueError("cut")


def outer():
    inner()


outer()
