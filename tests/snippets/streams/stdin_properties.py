import os
import stat
import sys

print(sys.stdin.encoding, sys.stdin.errors, sys.stdin.name, sys.stdin.mode, sys.stdin.isatty())
print(sys.stdin.fileno(), sys.stdin.closed, sys.stdin.readable(), sys.stdin.seekable(), sys.stdin.line_buffering)
print(sys.stdin is sys.__stdin__, type(sys.stdin.buffer).__name__, type(sys.stdin.buffer.raw).__name__)
print(stat.S_ISCHR(os.fstat(0).st_mode), os.readlink("/proc/self/fd/0"))
try:
    os.ttyname(0)
except OSError as error:
    print(error.errno)
