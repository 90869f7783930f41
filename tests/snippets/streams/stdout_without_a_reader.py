import os
import sys

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
sys.stdout = open(1, "w", buffering=8192, closefd=False)
print("nobody reads this")
