import sys


class Odd:
    def write(self, text):
        sys.__stdout__.write(text.upper())


sys.stdout = Odd()
print("shouted")
