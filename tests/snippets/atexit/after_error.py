import atexit
import sys

atexit.register(lambda: print("last error:", repr(sys.last_exc)))
raise ValueError("x")
