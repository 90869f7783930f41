# %%
# differs: stderr: an exit is an end and no error
# differs: status: an exit is an end and no error
import sys
before = 1
sys.exit()
# %%
# differs: stderr: an exit is an end and no error
sys.exit(3)
# %%
# differs: stderr: an exit is an end and no error
# differs: status: an exit is an end and no error
raise SystemExit(0)
# %%
# differs: stderr: an exit is an end and no error: its words go to standard error, as a program's do
sys.exit("a message")
# %%
# differs: stderr: an exit is an end and no error
def leave():
    sys.exit(7)
leave()
# %%
# differs: stderr: an exit is an end and no error
# differs: status: an exit code has eight bits
sys.exit(257)
# %%
try:
    sys.exit(4)
except SystemExit as left:
    print(left.code)
# %%
before
# %%
# differs: stderr: an exit is an end and no error
raise SystemExit([1])
# %%
# differs: stderr: an exit is an end and no error
try:
    sys.exit(1)
finally:
    print("finally")
