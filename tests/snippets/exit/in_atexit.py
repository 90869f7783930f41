import atexit
import sys

atexit.register(print, "called all the same")
atexit.register(sys.exit, 5)
