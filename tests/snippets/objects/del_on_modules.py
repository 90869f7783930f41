# differs: stdout: the interpreter is not taken apart: what a program does at its very end still works
import builtins
import json
import os
import sys


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name)


os.noisy = Noisy("on os")
json.noisy = Noisy("on json")
sys.noisy = Noisy("on sys")
builtins.noisy = Noisy("on builtins")
print("main ends")
