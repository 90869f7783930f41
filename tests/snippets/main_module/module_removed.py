import sys


class Noisy:
    def __del__(self):
        print("del", __name__)


noisy = Noisy()
del sys.modules["__main__"]
print("the end", __name__)
