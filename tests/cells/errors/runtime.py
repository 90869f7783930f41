# %%
unknown_name
# %%
1 / 0
# %%
before = "kept"
{}["missing"]
# %%
before
# %%
def outer(x):
    y = x - 1
    return inner(y)

def inner(y):
    return 10 / y

outer(1)
# %%
try:
    {}["a"]
except KeyError as error:
    raise ValueError("told") from error
# %%
try:
    {}["a"]
except KeyError:
    raise ValueError("meanwhile")
# %%
try:
    1 / 0
except ZeroDivisionError:
    raise TypeError("quiet") from None
# %%
raise ExceptionGroup("several", [ValueError(1), TypeError("two")])
# %%
def deep(n):
    return deep(n + 1)
try:
    deep(0)
except RecursionError as error:
    print(error)
# %%
# differs: stderr: how often a function called itself depends on how deep the shell's own frames are
deep(0)
# %%
# differs: result: a frame's module is known, or all that are loaded would be asked, for each frame of a traceback
import inspect
inspect.getmodule(deep.__code__)
# %%
assert 1 == 2, "not equal"
# %%
assert [] or None
# %%
raise KeyboardInterrupt
# %%
raise KeyboardInterrupt("told")
# %%
class Custom(Exception):
    def __str__(self):
        return "two\nlines"
raise Custom
# %%
class Bad(Exception):
    def __str__(self):
        raise ValueError("no text")
raise Bad
# %%
error = ValueError("noted")
error.add_note("a note")
raise error
# %%
int("five")
# %%
[1, 2][5]
# %%
"text".no_such_method()
# %%
open("nothing.txt")
# %%
import json
json.loads("{bad")
# %%
(lambda: 1 / 0)()
# %%
class Broken:
    def __init__(self):
        self.a = 1
        raise RuntimeError("in the making")
[Broken() for _ in range(2)]
# %%
raise "no exception"
# %%
raise BaseException("base")
# %%
raise GeneratorExit
# %%
import sys
sys.last_type, str(sys.last_value)
# %%
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
# %%
print(traceback.format_exc())
# %%
%tb
# %%
next(iter([]))
# %%
raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")
# %%
exec("1\n\nunknown", {})
# %%
very_long = "x" * 3000; {very_long: 1}["y" * 300]
# %%
"ends"
