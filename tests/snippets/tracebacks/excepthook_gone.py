import sys

del sys.excepthook
{}["original"]
