# %%
import math, os.path as paths
from collections import *
math.pi, paths.join("a", "b"), Counter("aa")
# %%
math.tau
# %%
import nothing_like_it
# %%
from math import nothing
# %%
open("helper.py", "w").write("value = 1\ndef f():\n    return value\n")
import helper
helper.f()
# %%
open("helper.py", "w").write("value = 22\ndef f():\n    return value\n")
import helper, importlib
helper.value, importlib.reload(helper).f()
# %%
from __future__ import annotations
def f(x: Unknown) -> Nothing: ...
f.__annotations__
# %%
def g(x: Unknown): ...
g.__annotations__
# %%
import ipywidgets
# %%
%load_ext autoreload
%autoreload 2
# %%
%load_ext no_such_extension
# %%
%run helper.py
value
# %%
%run -i nothing.py
# %%
import this as poem
poem.__name__
# %%
import antigravity_
