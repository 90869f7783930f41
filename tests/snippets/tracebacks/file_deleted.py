import os

os.remove(__file__)


def fail():
    raise ValueError("no lines to show")


fail()
