# %%
import sys
print("out"); print("err", file=sys.stderr); sys.stdout.write("no line end")
# %%
sys.stdout.write("a"); sys.stdout.flush(); sys.stderr.write("b\n")
# %%
import io
saved, sys.stdout = sys.stdout, io.StringIO()
print("caught")
# %%
text = sys.stdout.getvalue(); sys.stdout = saved
text
# %%
import contextlib
with contextlib.redirect_stdout(io.StringIO()) as caught:
    print("inside")
caught.getvalue()
# %%
with contextlib.redirect_stderr(io.StringIO()):
    1 / 0
# %%
kept, sys.stderr = sys.stderr, io.StringIO()
{}["to nowhere"]
# %%
said = sys.stderr.getvalue(); sys.stderr = kept
said
# %%
sys.stdout.isatty(), sys.stdout.encoding, sys.stderr.encoding
# %%
sys.stdout.buffer.write(b"bytes\n"); sys.stdout.buffer.flush()
# %%
import os
os.write(1, b"to the descriptor\n")
# %%
print("flushed", flush=True, end=""); print(" on")
# %%
sys.stdout.writelines(["a\n", "b\n"])
# %%
with contextlib.suppress(KeyError): {}["quiet"]
# %%
class Upper(io.TextIOBase):
    def write(self, text): saved.write(text.upper()); return len(text)
sys.stdout = Upper()
print("shouted")
5
# %%
sys.stdout = saved
# %%
display("first"); print("second", file=sys.stderr); print("third")
# %%
with contextlib.redirect_stdout(io.StringIO()) as caught:
    display("displayed")
caught.getvalue()
# %%
import shutil
shutil.get_terminal_size()
# %%
for n in range(3): print(n, end="\r")
# %%
from tqdm import tqdm
sum(tqdm(range(3), disable=True))
