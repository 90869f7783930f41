import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), ctypes.get_errno())
print(libc.ptrace(0, 0, 0, 0), ctypes.get_errno())
