import sys

print(sys.flags)
