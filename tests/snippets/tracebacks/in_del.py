# differs: stderr: the interpreter is not taken apart: what a program does at its very end still works
class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        raise ValueError(self.name)


Noisy("at once")
kept = Noisy("at the end")
print("last line")
