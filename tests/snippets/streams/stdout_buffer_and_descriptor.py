import os
import sys

print("one", end=" ")
sys.stdout.buffer.write(b"two ")
os.write(1, b"three ")
sys.stdout.write("four ")
sys.__stdout__.write("five ")
sys.stdout.writelines(["six ", "seven\n"])
os.write(1, b"\xff\xfe not text\n")
