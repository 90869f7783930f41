#!/usr/bin/env python3
"""Measures what reading the output of runs in progress costs the server.

The server reads the output of each run once a second, and ten times a second if the caller listens to its progress.

    tests/bench/output.py [--binary FILE] [--runs N] [--seconds N] [--write]

N runs are in progress at the same time, as plain processes: in the background without output, in the background with
ten lines a second each, and the same in calls that ask for progress. The result is the processor time of the server
alone, without agents and programs, for each second of a run. With --write it goes into docs/performance.md.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import engine
import report
from measure import right
from server import Server

ROOT = Path(__file__).resolve().parents[2]
TEXT = (
    "The server reads the output of a run in progress once a second, and ten times a second if its caller asks for "
    "progress. The time is that of the server alone, without the sandboxes, which are plain processes here"
)
SILENT = "import time\nwhile True: time.sleep(0.1)"
PRINTS = "import time\nwhile True: print('x' * 60, flush=True); time.sleep(0.1)"

# Whether the runs are in the background, and their program.
KINDS = {
    "in the background, without output": (True, SILENT),
    "in the background, ten lines a second": (True, PRINTS),
    "with progress messages, without output": (False, SILENT),
    "with progress messages, ten lines a second": (False, PRINTS),
}


def processor_seconds(server: Server) -> float:
    """User and system time of the server's process so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def begin(server: Server, session: str, code: str, in_background: bool) -> None:
    arguments = {"session_id": session, "code": code, "timeout_s": 300}
    if in_background:
        _, answer = server.call("run_python", **arguments, background=True)
        right(answer["status"] == "running", "not in progress", answer)
    else:
        call = {"name": "run_python", "arguments": arguments, "_meta": {"progressToken": session}}
        server.send("tools/call", call)


def until_they_run(server: Server, runs: int, in_background: bool) -> None:
    """Of calls with progress, waits until each has reported that its program runs or what it wrote."""
    waiting = set() if in_background else {f"s{n}" for n in range(runs)}
    while waiting:
        message = json.loads(server.line())
        if "starting" not in (told := message.get("params", {})).get("message", "starting"):
            waiting.discard(told["progressToken"])


def measure(binary: Path, folder: Path, kind: str, runs: int, seconds: float) -> float:
    in_background, code = KINDS[kind]
    settings = {
        "SANDBOX_ENGINE": "local",
        "SANDBOX_POOL_SIZE": "0",
        "SANDBOX_PRELOAD": "json",
        "SANDBOX_MAX_SESSIONS": str(runs),
        "SANDBOX_MAX_SESSIONS_PER_CLIENT": str(runs),
        "SANDBOX_EXEC_TIMEOUT_S": "300",
    }
    server = Server(binary, folder, kind.replace(" ", "-"), settings)
    for n in range(runs):
        server.call("run_python", session_id=f"s{n}", code="1")
    for n in range(runs):
        begin(server, f"s{n}", code, in_background)
    until_they_run(server, runs, in_background)
    used, begun = processor_seconds(server), time.monotonic()
    # Messages that nobody reads would stop the server.
    while (left := begun + seconds - time.monotonic()) > 0:
        if server.has_more(left):
            server.line()
    used, took = processor_seconds(server) - used, time.monotonic() - begun
    server.end()
    return used / (runs * took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            cost = measure(arguments.binary.resolve(), Path(folder), kind, arguments.runs, arguments.seconds)
            rows[kind] = round(cost * 1000, 3)
            print(f"{kind}: {rows[kind]} ms", flush=True)
    if arguments.write:
        report.keep(report.APART[0], engine.machine(), {
            "program": "tests/bench/output.py",
            "title": "The output of runs in progress",
            "text": TEXT,
            "head": [
                f"{arguments.runs} runs at the same time",
                "processor time of the server for each second of a run",
            ],
            "rows": [[kind, f"{cost:.2f} ms"] for kind, cost in rows.items()],
        })


if __name__ == "__main__":
    main()
