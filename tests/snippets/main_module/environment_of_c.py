import ctypes
import os

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
for name in sorted(os.environb):
    print(name, libc.getenv(name) == os.environb[name])
os.environ["ADDED"] = "here"
print(libc.getenv(b"ADDED"))
