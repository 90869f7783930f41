import os

value = "a global"


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print(self.name, value, other, os is not None, __name__)


first = Noisy("first")
other = "another global"
last = Noisy("last")
