import sys

print(sorted(name for name in sys.modules))
