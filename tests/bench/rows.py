"""The calls that are timed, and their rounds.

In each round every row has a turn, and within a row every contestant has one, with a gap before each call. The first
contestant changes from round to round, so that noise and neighbours affect all equally.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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

# Seconds by figure: most calls give one figure, the life of a session several.
Figures = dict[str, float]
Measure = Callable[[int], Figures]


@dataclass(frozen=True)
class Row:
    """The measurement of each contestant, and every how many rounds it is done."""

    measures: dict[str, Measure]
    every: int = 1


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


def program(contestant: Contestant, workload: Workload, runs: list[Ran]) -> Measure:
    def measure(_: int) -> Figures:
        ran = contestant.run(workload.code)
        workload.check(ran)
        if workload.draws:
            check_picture(contestant.download(PICTURE)[1])
        runs.append(ran)
        return {workload.key: ran.seconds}

    return measure


def upload(contestant: Contestant) -> Measure:
    def measure(number: int) -> Figures:
        # The content is new each time, which proves that the file was written now.
        content = random.Random(number).randbytes(SMALL_FILE)
        seconds = contestant.upload("small.bin", content)
        right(contestant.digest("small.bin") == engine.sha256(content), "upload", contestant.key)
        return {"upload": seconds}

    return measure


def download(contestant: Contestant) -> Measure:
    expected = large_file()

    def measure(_: int) -> Figures:
        seconds, content = contestant.download(LARGE)
        right(content == expected, "download", contestant.key, len(content))
        return {"download": seconds}

    return measure


def until_ready(lineup: Lineup) -> None:
    """Waits until exactly the warm session's container and a full pool exist, and all of them are idle."""
    lineup.server.until_containers(1 + lineup.pool)
    time.sleep(GAP_S)


def ours_pooled(lineup: Lineup) -> Measure:
    server = lineup.server

    def measure(_: int) -> Figures:
        until_ready(lineup)
        first, answer = server.call("run_python", code=PRINT)
        BY_KEY["print"].check(as_ran(first, answer))
        server.close(answer["session_id"])
        return {"first_pooled": first}

    return measure


def ours_named(lineup: Lineup, bench: Bench) -> Measure:
    server = lineup.server

    def measure(number: int) -> Figures:
        until_ready(lineup)
        session = bench.session(f"life-{number}")
        first, answer = server.call("run_python", session_id=session, code=PRINT)
        BY_KEY["print"].check(as_ran(first, answer))
        return {"first_named": first, "life": first + server.close(session)}

    return measure


def docker_life(lineup: Lineup, bench: Bench) -> Measure:
    def measure(_: int) -> Figures:
        first, whole = engine.run_once(bench.run, lineup.limits.image, lineup.options, PRINT, "4\n")
        # Docker has no pool: the same figure is compared with both of ours.
        return {"first_pooled": first, "first_named": first, "life": whole}

    return measure


def peer_life(peer: Peer) -> Measure:
    def measure(_: int) -> Figures:
        life = peer.worker.ask("life", code=PRINT)
        right(life["stdout"] == "4\n", "print in a new session", life)
        return {"first_named": life["first"], "life": life["whole"]}

    return measure


def peer_pooled(peer: Peer) -> Measure:
    def measure(_: int) -> Figures:
        life = peer.worker.ask("pooled", code=PRINT)
        right(life["stdout"] == "4\n", "print in a session out of the pool", life)
        return {"first_pooled": life["first"]}

    return measure


def lives(lineup: Lineup, bench: Bench) -> Iterator[Row]:
    """Rows about new sessions."""
    named = {"ours": ours_named(lineup, bench), "docker": docker_life(lineup, bench)}
    pooled = {"ours": ours_pooled(lineup)} if lineup.pool else {}
    if lineup.peer:
        named["peer"], pooled["peer"] = peer_life(lineup.peer), peer_pooled(lineup.peer)
    yield Row(named, every=2)
    yield Row(pooled, every=2)


def warm(lineup: Lineup, pipe: floor.Pipe, prints: list[Ran]) -> Iterator[Row]:
    """Rows about calls in warm sessions. Our own runs of the first program are added to `prints`."""
    for workload in WORKLOADS:
        kept = prints if workload.key == "print" else []
        runs = {one.key: kept if one is lineup.ours else [] for one in lineup.everybody()}
        yield Row({one.key: program(one, workload, runs[one.key]) for one in lineup.everybody()}, workload.every)
    yield Row({one.key: upload(one) for one in lineup.sandboxes()}, every=2)
    yield Row({one.key: download(one) for one in lineup.sandboxes()}, every=2)
    yield Row({"floor": lambda _: {"pipe": pipe.round_trip()}})


def rounds(rows: Sequence[Row], iterations: int, samples: Samples, progress: Callable[[int], None]) -> None:
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
