import fcntl
import os
import stat
import sys

for stream in sys.stdout, sys.stderr:
    print(stream.encoding, stream.errors, stream.newlines, stream.line_buffering, stream.write_through)
    print(stream.name, stream.mode, stream.fileno(), stream.isatty(), stream.seekable(), stream.writable(), stream.readable())
    print(type(stream).__name__, type(stream.buffer).__name__, hasattr(stream.buffer, "raw"), stream.closed)
    print(stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode), fcntl.fcntl(stream, fcntl.F_GETFL), fcntl.fcntl(stream, fcntl.F_GETFD))
    print(fcntl.fcntl(stream, fcntl.F_GETPIPE_SZ))
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, repr(sys.stdout), repr(sys.stderr))
