"""Our server compared with `docker exec`, with the PyPI package `llm-sandbox`, and with a bare fork as the floor:
in one run, on one engine and image, under the same limits.

Rules of a fair comparison:

- Contestants take turns call by call (`rows`), so that noise of the machine affects all equally.
- The limits of the others are read from a container of ours (`engine`). If the package's interface does not support a
  limit, the package gets a less strict one (`peer`).
- All run the same programs (`workloads`), and each answer is checked: a wrong one ends the run with exit code 1. No
  time is a failure.
- Of our server the whole call is timed as its client sees it (`server`), of the others only their own interface.

    bench ─┬─ rows       latencies, in turns ────┬─ lineup ─┬─ server  ours, over stdio
           ├─ rates      runs and MB a second ───┤          ├─ engine  docker exec, docker run
           ├─ footprint  memory ─────────────────┘          ├─ peer    the package, by a worker in its venv
           ├─ growth     another mode                       └─ floor   fork and wait, by a worker in a container
           └─ report, chart_program: the files in out/
"""

import argparse
import json
import os
import re
import signal
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import cells
import embedded
import engine
import floor
import footprint
import growth
import peer
import rates
import report
import rows
from lineup import Bench, Lineup
from measure import GAP_S, Ran, Samples, Wrong, right
from server import Ours, Server, fetched
from workloads import BY_KEY

OUT = Path(__file__).parent / "out"
HIBERNATE = {"SANDBOX_HIBERNATE_AFTER_M": "0.01"}
LARGEST_CHART = 60_000

METHOD = (
    f"Contestants take turns, call by call, with a gap of {GAP_S * 1e3:.0f} ms before each: a model thinks between "
    "its calls. Rates are measured without gaps. `n` is the number of calls of each contestant; p95 is by nearest "
    "rank. Ratios say how many times longer than ours the other's median is. `docker run --rm` stands for a new "
    "session of docker's."
)


@dataclass(frozen=True)
class Amount:
    """The number of iterations, rounds and runs."""

    iterations: int
    rounds: int
    # Runs of each session and round: prints and small pandas of all sessions at once, and runs of one session alone.
    prints: int
    frames: int
    alone: int

    @classmethod
    def of(cls, quick: bool, iterations: int | None) -> "Amount":
        if quick:
            return cls(iterations or 2, rounds=1, prints=2, frames=0, alone=5)
        return cls(iterations or 30, rounds=3, prints=10, frames=3, alone=30)


class Stopped(BaseException):
    """Raised by Ctrl-C or SIGTERM: everything is still shut down in order."""


def stop_in_order() -> None:
    def stop(number: int, _: FrameType | None) -> None:
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def compare(bench: Bench, amount: Amount, command: str, out: Path) -> int:
    lineup = Lineup.start(bench)
    results = description(bench, lineup, command)
    results |= measure_all(bench, lineup, amount)
    save(results, out, "results.json")
    bench.step("chart")
    (out / "chart.svg").write_bytes(chart(bench, lineup.server, out / "results.json"))
    text = report.markdown(results)
    (out / "table.md").write_text(text)
    print(f"\n{text}")
    bench.step(f"done: results.json, table.md and chart.svg are in tests/bench/{out.relative_to(OUT.parent)}")
    if bench.writes:
        report.write_pages(results)
        bench.step(f"written: {report.PAGE} and the rows of README.md")
    return 0


def measure_all(bench: Bench, lineup: Lineup, amount: Amount) -> dict[str, Any]:
    idle = {one.key: engine.memory(one.container) for one in (lineup.docker, lineup.peer) if one}
    bench.step("every program once")
    rows.prepare(lineup)
    bench.step(f"latencies, {amount.iterations} rounds")
    samples, prints = measure_latencies(bench, lineup, amount)
    bench.step("rates")
    found = measure_rates(bench, lineup, amount)
    bench.step("memory")
    sizes = {key: memory.report() for key, memory in idle.items()} | measure_memory(bench, lineup, amount)
    bench.step("100 MB files")
    with bench.server("big", rates.BIG_SETTINGS) as big:
        large = rates.big_files(big, bench.session("big"), amount.rounds)
    return {
        "latency": {row: samples.of(row) for row in report.ROWS},
        "rates": found,
        "memory": sizes,
        "big_files": large,
        "overhead": overhead(lineup.server, prints),
        "notes": bench.notes,
    }


def measure_latencies(bench: Bench, lineup: Lineup, amount: Amount) -> tuple[Samples, list[Ran]]:
    """Returns all samples, and our own runs of the first program, whose log lines are read later."""
    samples, prints = Samples(), list[Ran]()
    quarter = max(1, amount.iterations // 4)

    def progress(done: int) -> None:
        if done % quarter == 0:
            bench.step(f"round {done}")

    with floor.pipe() as pipe:
        every = [*rows.warm(lineup, pipe, prints), *rows.lives(lineup, bench)]
        rows.rounds(every, amount.iterations, samples, progress)
    return samples, prints


def measure_rates(bench: Bench, lineup: Lineup, amount: Amount) -> dict[str, Any]:
    runs, frames = BY_KEY["print"], BY_KEY["pandas"]
    one = {contestant.key: rates.alone(contestant) for contestant in lineup.sandboxes()}
    found = {"print, one session, back to back": rates.per_second(one, runs, amount.alone, amount.rounds, 1)}
    many = rates.SESSIONS
    with rates.all_at_once(bench, lineup) as parallel:
        for title, workload, each in (("print", runs, amount.prints), ("small pandas", frames, amount.frames)):
            if each:
                rate = rates.per_second(parallel, workload, each, amount.rounds, many)
                found[f"{title}, {many} sessions at once"] = rate
    return found


def measure_memory(bench: Bench, lineup: Lineup, amount: Amount) -> dict[str, Any]:
    idle = footprint.warm(lineup.server, bench.session("idle"))
    found: dict[str, Any] = {"idle": idle.report()}
    settings = bench.known(HIBERNATE)
    if settings:
        with bench.server("hibernate", settings) as second:
            asleep = footprint.hibernated(second, bench.session("asleep"), idle, wakes=amount.rounds)
        if asleep:
            found["hibernated"] = asleep
        else:
            bench.note(f"a session did not let go of half of its memory within {footprint.PATIENCE_S} s of idling")
    return found


def overhead(server: Server, prints: list[Ran]) -> dict[str, Any]:
    """The time of a print outside the program, from the log if it has the figures."""
    logged = server.calls_logged()
    coarse = statistics.median(ran.seconds * 1e3 - ran.about["duration_ms"] for ran in prints)
    found: dict[str, Any] = {"coarse_ms": round(coarse, 3), "n": len(prints)}
    lines = [(ran.seconds * 1e6, logged.get(ran.about["run_id"], {})) for ran in prints]
    whole = [(us, line["call_us"], line["agent_us"]) for us, line in lines if {"agent_us", "call_us"} <= line.keys()]
    if whole:
        parts = {"server_ms": [call - agent for _, call, agent in whole], "client_ms": [us - agent for us, _, agent in whole]}
        for name, times in (parts | {"agent_ms": [agent for *_, agent in whole]}).items():
            found[name] = round(statistics.median(times) / 1e3, 4)
    return found


def chart(bench: Bench, server: Server, results: Path) -> bytes:
    """Draws the chart in a session of ours, so that this machine needs no library for it."""
    ours = Ours(server, bench.session("chart"))
    ours.upload("results.json", results.read_bytes())
    ran = ours.run(Path(__file__).with_name("chart_program.py").read_text())
    right(ran.exit_code == 0, "the chart", ran.stderr)
    svg = b"".join(fetched(ours.url("chart.svg")))
    right(svg.startswith(b"<?xml") and b"<svg" in svg and len(svg) < LARGEST_CHART, "the chart", len(svg))
    server.close(ours.session)
    return svg


def when_and_where() -> dict[str, Any]:
    return {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "machine": engine.machine()}


def description(bench: Bench, lineup: Lineup, command: str) -> dict[str, Any]:
    limits = lineup.limits
    ours = [
        "MCP over stdio, one warm session, default settings" + (", SANDBOX_POOL_SIZE=1" if lineup.pool else ""),
        "the whole call from before the message is put together to after the answer is parsed",
        "10 MB read over HTTP, a connection each",
        f"limits: {limits.sentence()}",
    ]
    docker = [
        "the docker client, `docker exec CONTAINER python3 -c CODE`, in a container kept by `sleep infinity`",
        "the same image, and limits read off ours; home folder prepared as ours is",
    ]
    settings = {"ours": ours, "docker exec": docker, "floor": floor.SETTINGS}
    if lineup.peer and bench.venv:
        settings[f"PyPI llm-sandbox {peer.version(bench.venv)}"] = peer.SETTINGS
    image = engine.docker("image", "inspect", "--format", "{{slice .Id 7 19}}", limits.image).decode().strip()
    return when_and_where() | {
        "command": command,
        "docker": engine.versions(),
        "image": f"{limits.image} ({image})",
        "settings": settings,
        "method": METHOD,
    }


def as_json(results: dict[str, Any]) -> str:
    """Indented JSON, but with the samples of a figure on one line."""
    numbers = re.compile(r"\[\s+(-?[\d.]+(?:,\s+-?[\d.]+)*)\s+\]")
    return numbers.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(results, indent=1)) + "\n"


def save(results: dict[str, Any], out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_text(as_json(results))


def grow(bench: Bench, runs: int) -> int:
    with bench.server("growth", {}) as server:
        lines, wrong = growth.grow(server, bench.session("growth"), runs, bench.step)
    print(f"\n{report.table(growth.COLUMNS, lines)}")
    bench.step(f"{runs:,} runs, {wrong} wrong")
    if bench.writes:
        report.measured().put("docs/reliability.md", "growth", growth.sentence(lines, wrong))
    return 1 if wrong else 0


def compare_cells(bench: Bench, iterations: int, out: Path) -> int:
    results = cells.measure(bench, iterations) | when_and_where()
    save(results, out, "cells.json")
    text = cells.markdown(results)
    print(f"\n{text}")
    if bench.writes:
        report.measured().put("docs/workspaces.md", "cells", f"{text}\n\n{cells.where(results)}")
    return 0


def compare_engines(bench: Bench, iterations: int, out: Path, quick: bool) -> int:
    results = embedded.measure(bench, iterations, 20 if quick else 1000) | when_and_where()
    save(results, out, "embedded.json")
    text, tools = embedded.markdown(results), embedded.tools_markdown(results)
    print(f"\n{text}\n\n{tools}")
    if bench.writes:
        where = embedded.where(results)
        report.measured().put("docs/embedded-engine.md", "embedded", f"{text}\n\n{where}")
        report.measured().put("docs/own-tools.md", "tools", f"{tools}\n\n{where}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="tests/bench/run.sh starts this", allow_abbrev=False)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path, help="for logs and files, removed by whoever made it")
    parser.add_argument("run", help="label of all that this run starts")
    parser.add_argument("--venv", type=Path, help="where PyPI llm-sandbox is installed; left out without it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--write", action="store_true", help="also the pages of the documentation")
    parser.add_argument("--growth", type=int, metavar="N")
    parser.add_argument("--cells", action="store_true")
    parser.add_argument("--embedded", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    stop_in_order()
    command = "tests/bench/run.sh" + (" --quick" if given.quick else "")
    command += f" --iterations {given.iterations}" if given.iterations else ""
    if os.environ.get("LLM_SANDBOX_BIN"):
        # The path does not matter for the page; but the program may not be the release build, so the variable is named.
        command = f"LLM_SANDBOX_BIN=... {command}"
    amount = Amount.of(given.quick, given.iterations)
    # A smoke test does not overwrite the figures of a real run.
    out = OUT / "quick" if given.quick else OUT
    try:
        with ExitStack() as stack:
            bench = Bench(given, stack)
            if given.embedded:
                return compare_engines(bench, amount.iterations, out, given.quick)
            if given.cells:
                return compare_cells(bench, amount.iterations, out)
            return grow(bench, given.growth) if given.growth else compare(bench, amount, command, out)
    except Stopped as why:
        print(f"bench: stopped by {why}; all that was started is gone", flush=True)
        return 130
    except Wrong as error:
        print(f"bench: FAILED: {' '.join(str(part)[:1000] for part in error.args)}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
