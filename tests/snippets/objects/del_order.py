class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name)


z = Noisy("z, first")
a = Noisy("a, second")
_private = Noisy("_private, third")
__dunder__ = Noisy("__dunder__, fourth")
pair = [Noisy("in a list"), Noisy("in the same list")]
b = Noisy("b, last")
del z
z = Noisy("z again")
print("main ends")
