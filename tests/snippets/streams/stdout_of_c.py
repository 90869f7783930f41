import ctypes

libc = ctypes.CDLL(None)
print("one")
libc.printf(b"in the buffer of C, %d\n", 2)
libc.puts(b"flushed by exit")
print("three")
