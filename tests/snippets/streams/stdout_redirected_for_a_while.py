import contextlib
import io
import sys

text = io.StringIO()
with contextlib.redirect_stdout(text), contextlib.redirect_stderr(sys.__stdout__):
    print("caught")
    print("moved", file=sys.stderr)
print(repr(text.getvalue()))
print("to stderr", file=sys.stderr)
