import pdb
import sys


def work(value):
    return 1 / value


try:
    work(0)
except ZeroDivisionError:
    pdb.post_mortem()
print("after", sys.stdin.read() == "")
