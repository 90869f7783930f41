import __main__
import sys

print(sys.modules["__main__"] is __main__, vars(__main__) is globals(), type(__main__).__name__)
print(repr(__main__))
__main__.added = 5
print(added)
