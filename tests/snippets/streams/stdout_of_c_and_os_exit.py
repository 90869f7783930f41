import ctypes
import os

ctypes.CDLL(None).puts(b"lost with _exit")
os._exit(0)
