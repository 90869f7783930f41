import sys


def hook(*arguments):
    raise RuntimeError("the hook is broken")


sys.excepthook = hook
{}["original"]
