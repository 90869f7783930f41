import sys


def f(x: int) -> "str":
    return str(x)


value: float = 1.5
print(f.__annotations__, __annotations__)
print(compile("x = 1", "<own>", "exec").co_flags, sys._getframe().f_code.co_flags)
