import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print(ctypes.get_errno(), libc.abs(-5), libc.open(b"/missing", 0), ctypes.get_errno())
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))(lambda a, b: a[0] - b[0])
values = (ctypes.c_int * 4)(4, 2, 3, 1)
libc.qsort(values, 4, ctypes.sizeof(ctypes.c_int), callback)
print(list(values))
