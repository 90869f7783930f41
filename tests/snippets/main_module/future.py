from __future__ import annotations

import typing


def f(x: Missing) -> list[int]:
    return [x]


value: Undefined = 1
print(f.__annotations__, __annotations__)
print(annotations.getMandatoryRelease() is None or "some day")
exec("def g(x: Nowhere): pass\nprint(g.__annotations__)")
