# differs: stderr: the interpreter is not taken apart: what a program does at its very end still works
import sys


class Exits:
    def __del__(self):
        sys.exit(13)


Exits()
print("goes on")
kept = Exits()
