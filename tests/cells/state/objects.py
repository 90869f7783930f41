# %%
from dataclasses import dataclass, field
from enum import Enum, auto
@dataclass(order=True)
class Point:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)
Point(1)
# %%
class Color(Enum):
    RED = auto()
    BLUE = auto()
Color.RED, Color["BLUE"].value, list(Color)
# %%
import pickle, copy
again = pickle.loads(pickle.dumps(Point(3)))
again == Point(3), again, type(again) is Point, Point.__module__
# %%
pickle.dumps(lambda: 1)
# %%
copy.deepcopy({"p": again}), copy.copy(again) is again
# %%
from typing import NamedTuple, TypedDict, Protocol
from collections import namedtuple, OrderedDict, defaultdict, Counter, deque
class Row(NamedTuple):
    name: str
    size: int = 0
Row("a"), namedtuple("Pair", "a b")(1, 2), Counter("aab"), defaultdict(list, a=[1]), deque([1], 3)
# %%
import weakref, gc
class Node: pass
node = Node()
ref = weakref.ref(node, lambda _: print("gone"))
del node
ref() is None
# %%
loop = Node(); loop.me = loop; ref = weakref.ref(loop); del loop
gc.collect() > 0, ref()
# %%
from decimal import Decimal
from fractions import Fraction
import datetime
Decimal("0.1") + 1, Fraction(1, 3), datetime.datetime(2024, 1, 2), datetime.timedelta(hours=1)
# %%
from functools import lru_cache, partial, singledispatch
@lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(50), fib.cache_info()
# %%
import contextvars
request = contextvars.ContextVar("request", default="none")
token = request.set("one")
request.get()
# %%
request.get()
# %%
class Resource:
    def __enter__(self): print("in"); return self
    def __exit__(self, *error): print("out", error[0]); return True
with Resource():
    1 / 0
"after"
# %%
class Final:
    def __del__(self): print("deleted")
final = Final()
# %%
final = None
