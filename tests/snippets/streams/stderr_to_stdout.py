import os
import sys

os.dup2(1, 2)
print("one")
print("two", file=sys.stderr)
print("three")
{}["four"]
