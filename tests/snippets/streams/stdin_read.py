import os
import sys

print(repr(sys.stdin.read()), repr(sys.stdin.readline()), list(sys.stdin), sys.stdin.buffer.read1())
print(os.read(0, 1), open(0, closefd=False).read() == "")
