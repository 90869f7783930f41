"""The calls that are timed, and their rounds.

In each round every row has a turn, and within a row every contestant has one, with a gap before each call. The first
contestant changes from round to round, so that noise and neighbours affect all equally.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import engine
import floor
from lineup import Bench, Lineup
from measure import GAP_S, Contestant, Ran, Samples, right
from peer import Peer
from server import as_ran
from workloads import BY_KEY, PICTURE, PRINT, TABLE, WORKLOADS, Workload, check_picture, table

SMALL_FILE = 1_000_000
LARGE_FILE = 10_000_000
LARGE = "large.bin"

# Seconds by figure: most calls give one figure, the life of a session several. A measurement gets the round's number.
Figures = dict[str, float]
Measure = Callable[[int], Figures]


@dataclass(frozen=True)
class Row:
    """The measurement of each contestant, and every how many rounds it is done."""

    measures: dict[str, Measure]
    every: int = 1


def rounds(rows: Sequence[Row], iterations: int, samples: Samples, progress: Callable[[int], None] = lambda _: None) -> None:
    for number in range(iterations):
        for row in rows:
            keys = list(row.measures)
            if not keys or number % row.every:
                continue
            first = number // row.every % len(keys)
            for key in keys[first:] + keys[:first]:
                time.sleep(GAP_S)
                for figure, seconds in row.measures[key](number).items():
                    samples.add(figure, key, seconds)
        progress(number + 1)


def program(run: Callable[[str], Ran], workload: Workload, _: int = 0) -> Figures:
    ran = run(workload.code)
    workload.check(ran)
    return {workload.key: ran.seconds}


def large_file() -> bytes:
    return random.Random(2).randbytes(LARGE_FILE)


def prepare(lineup: Lineup) -> None:
    """Uploads the files, and runs every program once, so that no figure is that of a first time."""
    for contestant in lineup.sandboxes():
        contestant.upload(TABLE, table())
        contestant.upload(LARGE, large_file())
    for contestant in lineup.everybody():
        for workload in WORKLOADS:
            workload.check(contestant.run(workload.code))


def warm(lineup: Lineup, pipe: floor.Pipe, prints: list[Ran]) -> Iterator[Row]:
    """Rows about calls in warm sessions. Our own runs of the first program are added to `prints`."""
    expected = large_file()

    def run(contestant: Contestant, workload: Workload, _: int) -> Figures:
        ran = contestant.run(workload.code)
        workload.check(ran)
        if workload.draws:
            check_picture(contestant.download(PICTURE)[1])
        if workload.key == "print" and contestant is lineup.ours:
            prints.append(ran)
        return {workload.key: ran.seconds}

    def upload(contestant: Contestant, number: int) -> Figures:
        # The content is new each time, which proves that the file was written now.
        content = random.Random(number).randbytes(SMALL_FILE)
        seconds = contestant.upload("small.bin", content)
        right(contestant.digest("small.bin") == engine.sha256(content), "upload", contestant.key)
        return {"upload": seconds}

    def download(contestant: Contestant, _: int) -> Figures:
        seconds, content = contestant.download(LARGE)
        right(content == expected, "download", contestant.key, len(content))
        return {"download": seconds}

    for workload in WORKLOADS:
        yield Row({one.key: partial(run, one, workload) for one in lineup.everybody()}, workload.every)
    yield Row({one.key: partial(upload, one) for one in lineup.sandboxes()}, every=2)
    yield Row({one.key: partial(download, one) for one in lineup.sandboxes()}, every=2)
    yield Row({"floor": lambda _: {"pipe": pipe.round_trip()}})


def lives(lineup: Lineup, bench: Bench) -> Iterator[Row]:
    """Rows about new sessions."""
    server = lineup.server

    def ours(figure: str, **named: str) -> Figures:
        # Exactly the warm session's container and a full pool exist, and all of them are idle.
        server.until_containers(1 + lineup.pool)
        time.sleep(GAP_S)
        first, answer = server.call("run_python", code=PRINT, **named)
        BY_KEY["print"].check(as_ran(first, answer))
        life = first + server.close(answer["session_id"])
        return {figure: first} | ({"life": life} if named else {})

    def docker(_: int) -> Figures:
        first, whole = engine.run_once(bench.run, lineup.limits.image, lineup.options, PRINT, "4\n")
        # Docker has no pool: the same figure is compared with both of ours.
        return {"first_pooled": first, "first_named": first, "life": whole}

    def of_peer(peer: Peer, do: str, figures: dict[str, str], _: int) -> Figures:
        life = peer.worker.ask(do, code=PRINT)
        right(life["stdout"] == "4\n", do, life)
        return {figure: life[part] for figure, part in figures.items()}

    named = {"ours": lambda number: ours("first_named", session_id=bench.session(f"life-{number}")), "docker": docker}
    pooled: dict[str, Measure] = {"ours": lambda _: ours("first_pooled")} if lineup.pool else {}
    if lineup.peer:
        named["peer"] = partial(of_peer, lineup.peer, "life", {"first_named": "first", "life": "whole"})
        pooled["peer"] = partial(of_peer, lineup.peer, "pooled", {"first_pooled": "first"})
    yield Row(named, every=2)
    yield Row(pooled, every=2)
