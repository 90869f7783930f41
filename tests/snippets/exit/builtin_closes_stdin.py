import atexit
import sys

atexit.register(lambda: print(sys.stdin.closed))
quit(5)
