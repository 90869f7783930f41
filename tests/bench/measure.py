"""Samples and their statistics, and the two kinds of answer of a contestant.

This module does not know how a figure is measured.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

# A model thinks between its calls, so the benchmark leaves a gap before each call. Then the clean-up after a call does
# not slow the next contestant, and no contestant profits from caches that only a loop keeps warm.
GAP_S = 0.06


class Wrong(Exception):
    """An incorrect answer: the figures mean nothing then, and the run fails."""


def right(holds: object, *about: object) -> None:
    if not holds:
        raise Wrong(*about)


@dataclass(frozen=True)
class Ran:
    """The result of one program, and its time as its caller sees it."""

    seconds: float
    exit_code: int
    stdout: str
    stderr: str
    about: dict[str, Any] = field(default_factory=dict)


class Contestant(Protocol):
    """A warm sandbox with its files in /mnt/data. Methods that return seconds are timed, the others are not."""

    key: str

    def run(self, code: str) -> Ran: ...
    def upload(self, name: str, content: bytes) -> float: ...
    def download(self, name: str) -> tuple[float, bytes]: ...
    def digest(self, name: str) -> str: ...


class Samples:
    """Seconds by figure and contestant."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, figure: str, contestant: str, seconds: float) -> None:
        self.seconds.setdefault((figure, contestant), []).append(seconds)

    def of(self, figure: str) -> dict[str, dict[str, Any]]:
        """A figure in milliseconds, by contestant."""
        found = {key[1]: seconds for key, seconds in self.seconds.items() if key[0] == figure}
        return {contestant: summary(second * 1e3 for second in seconds) for contestant, seconds in found.items()}


def summary(samples: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(samples)
    return {
        "median": round(statistics.median(ordered), 4),
        "p95": round(percentile(ordered, 0.95), 4),
        "least": round(ordered[0], 4),
        "n": len(ordered),
        "samples": [round(sample, 3) for sample in ordered],
    }


def percentile(ordered: list[float], share: float) -> float:
    """The percentile by nearest rank: a value that really occurred, and the largest if there are few."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
