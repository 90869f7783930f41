import os
import sys

sys.stderr.write("no newline, ")
print("printed", file=sys.stderr)
sys.stderr.buffer.write(b"bytes\n")
os.write(2, b"direct\n")
sys.__stderr__.write("half a pair \ud800\n")
