import traceback

try:
    bytearray(1 << 62)
except MemoryError:
    traceback.print_exc()
[0] * (1 << 60)
