import resource

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print(len(bytearray(200 << 20)))
try:
    bytearray(2 << 30)
except MemoryError:
    print("too much")
