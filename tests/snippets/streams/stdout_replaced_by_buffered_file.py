import sys

sys.stdout = open(1, "w", buffering=8192, closefd=False)
print("flushed", "at the end")
