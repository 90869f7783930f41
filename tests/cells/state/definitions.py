# %%
a, *rest = range(4)
a += 1
# %%
def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
step = counter()
# %%
step(), step()
# %%
numbers = (n * n for n in range(5))
next(numbers), next(numbers)
# %%
list(numbers), a, rest
# %%
def twice(function):
    def run(*args):
        return function(function(*args))
    return run
@twice
def grow(x):
    return x * 10
grow(1)
# %%
class Base:
    kinds = []
    def __init_subclass__(cls):
        Base.kinds.append(cls.__qualname__)
class One(Base): pass
Base.kinds
# %%
class Base:
    "Defined again."
issubclass(One, Base), One.__mro__
# %%
del a
a
# %%
def change():
    global made
    made = "by a function"
change()
made
# %%
x = 10
[x for x in range(3)], x
# %%
if (n := 7) > 5: print(n)
[last := n * k for k in range(3)], last
# %%
exec("by_exec = x + 1")
by_exec, eval("by_exec * 2")
# %%
class Scope:
    x = 5
    values = [i for i in range(x)]
    def get(self): return x
Scope.values, Scope().get()
