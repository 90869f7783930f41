"""Compares two sides by calls in turns.

Each turn is a call of either side, in an order that changes from turn to turn, so that the noise of the machine affects
both equally.
"""

import statistics
from collections.abc import Callable
from typing import TypeVar

Side = TypeVar("Side")

WARM_UP = 20


def compare(
    kinds: dict[str, Callable[[Side], float]], sides: tuple[Side, Side], names: tuple[str, str], calls: int
) -> None:
    """Prints for each kind of call the medians of both sides, the median of the differences within a turn, and that
    difference as a share of the first side's median."""
    print(f"| call | {names[0]} | {names[1]} | median of the differences | share | n |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    first, second = sides
    for name, call in kinds.items():
        for _ in range(WARM_UP):
            call(first)
            call(second)
        pairs = []
        for turn in range(calls):
            if turn % 2:
                one, other = call(first), call(second)
            else:
                other, one = call(second), call(first)
            pairs.append((one * 1e6, other * 1e6))
        one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
        cost = statistics.median(other - one for one, other in pairs)
        print(f"| {name} | {one:.0f} us | {other:.0f} us | {cost:+.0f} us | {cost / one:+.1%} | {calls} |", flush=True)
