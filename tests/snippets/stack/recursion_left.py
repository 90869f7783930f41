# differs: stdout: below the program there is one frame of the fork server
import sys


def deepest(n):
    try:
        return deepest(n + 1)
    except RecursionError:
        return n


print(sys.getrecursionlimit(), deepest(0))
