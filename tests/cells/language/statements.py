# %%
match {"kind": "point", "at": (1, 2)}:
    case {"kind": "point", "at": (x, y)} if x < y:
        print(x, y)
    case _:
        print("other")
# %%
def area(width: float, height: "float" = 1) -> float:
    return width * height
area.__annotations__, area(2, height=3)
# %%
count: int = 5
__annotations__
# %%
type Pair[T] = tuple[T, T]
def first[T](pair: Pair[T]) -> T: return pair[0]
Pair, first((1, 2))
# %%
try:
    raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
except* ValueError as group:
    print(group.exceptions)
except* KeyError:
    print("key")
# %%
for n in range(2): print(n)
else: print("else")
# %%
n
# %%
while True:
    n += 1
    if n > 3: break
n
# %%
with open("a.txt", "w") as a, open("b.txt", "w") as b: a.write("1")
# %%
print("é 😀 中文 \u202e")
"é 😀 中文", "\x00\x07"
# %%
変数 = 5; naïve = 변수 = 6
変数 + naïve
# %%
f"{変数!r:>5}|{变量 if False else 1}|{3.14159:.2f}"
# %%
print("\udc80".encode("utf-8", "surrogateescape"))
# %%
print("\ud800")
# %%
"\ud800"
# %%
print("\x1b[31mred\x1b[0m", "\rover", "tab\there")
# %%
print("x" * 20000)
# %%
"y" * 5000
# %%
print(*range(5), sep="-", end="")
# %%
lambda x: x
# %%
{**{"a": 1}, "b": 2}, [*range(2), *"ab"], (1,)
# %%
x = (
    1
    + 2
)
x
# %%
a = b = c = []
a.append(1); c
# %%
...
# %%
@lambda f: f()
def made(): return "decorated by a lambda"
made
# %%
def gen():
    received = yield 1
    print(received)
    yield 2
g = gen(); next(g), g.send("sent")
# %%
1 if x else \
2
# %%
del x; x
# %%
True = 1
# %%
0.1 + 0.2, 1e300 * 10, -0.0, 10 ** 30, 0xFF, 1j ** 2, float("nan")
# %%
	
1
