import os
import sys

os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
sys.stdout = open(1, "w", buffering=8192, closefd=False)
print("no room")
