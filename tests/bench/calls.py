#!/usr/bin/env python3
"""Measures what a call of a tool by code in a sandbox costs beside the same call by a client of the upstream, and what
upstreams cost a run that calls nothing.

    tests/bench/calls.py [--engine wasm|docker]... [--binary FILE] [--calls N] [--rounds N] [--runs N]
                         [--write]

The upstream is a small server of MCP that answers at once. In each round it is called N times from this program and N
times from one run in a sandbox, one call after another. The first table has the medians of the calls of all rounds,
and their difference; then the calls a second of one run, one after another and from eight threads. The second table
compares a small run on a server with upstreams and on one without. No figure is a failure; a wrong answer is. With
--write the first table goes into docs/performance.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import engine as engine_facts
import report
from measure import right
from server import Server
from turns import compare

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = [sys.executable, str(ROOT / "tests/upstream/server.py"), "old"]
SETTINGS = {
    "SANDBOX_POOL_SIZE": "0",
    "SANDBOX_EXEC_TIMEOUT_S": "600",
    "SANDBOX_CALLS_PER_RUN": "100000",
    "SANDBOX_CALLS_PER_MINUTE": "0",
}
HEAD = ["engine", "from the host", "from a run", "more", "calls a second", "from 8 threads", "n"]
TEXT = (
    "A call of a tool of an MCP server over stdio that answers at once, from a client on the host, and by code in a run; "
    "medians of single calls, one after another. The server's own share of a call is the column *more*"
)
CODE = """
import json, time, tools
from concurrent.futures import ThreadPoolExecutor
echo = tools.bench.echo
echo(text='first')
def one(_=None):
    begun = time.perf_counter()
    assert echo(text='x') == 'x'
    return time.perf_counter() - begun
times = [one() for _ in range({calls})]
begun = time.perf_counter()
if {threads}:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range({calls})))
print(json.dumps([times, time.perf_counter() - begun]))
"""


class Direct:
    """A client of the upstream that is no more than is needed."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(UPSTREAM, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.last = 0
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", hello)

    def ask(self, method: str, params: dict[str, object]) -> dict[str, object]:
        assert self.process.stdin and self.process.stdout
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message) + "\n")
        return json.loads(self.process.stdout.readline())["result"]  # type: ignore[no-any-return]

    def call(self) -> float:
        begun = time.perf_counter()
        result = self.ask("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        took = time.perf_counter() - begun
        right("x" in str(result["content"]), "not the answer", result)
        return took


def measure(engine: str, server: Server, calls: int, rounds: int) -> list[str]:
    direct, inside, at_once = Direct(), [], []
    outside: list[float] = []
    for turn in range(rounds):
        code = CODE.format(calls=calls, threads=not sys.platform.startswith("wasi") and engine != "wasm")
        _, answer = server.call("run_python", session_id="calls", code=code, timeout_s=600)
        right(answer["exit_code"] == 0, "the program failed", answer["stderr"])
        times, seconds = json.loads(answer["stdout"])
        if turn:
            inside += times
            at_once.append(calls / seconds if engine != "wasm" else 0.0)
        took = [direct.call() for _ in range(calls)]
        outside += took if turn else []
    direct.process.kill()
    one, other = statistics.median(outside) * 1e6, statistics.median(inside) * 1e6
    threads = f"{statistics.median(at_once):.0f}" if engine != "wasm" else "no threads"
    more = f"{(other - one) / 1000:.2f} ms"
    row = [engine, f"{one:.0f} us", f"{other:.0f} us", more, f"{1e6 / other:.0f}", threads, str(len(inside))]
    print(" | ".join(row), flush=True)
    return row


def small_run(server: Server) -> float:
    seconds, answer = server.call("run_python", session_id="small", code="print(2+2)")
    right(answer["stdout"] == "4\n", "not the output", answer)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=["wasm", "docker"])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="write the first table into docs/performance.md")
    arguments = parser.parse_args()
    binary = arguments.binary.resolve()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        config = folder / "calls.yaml"
        command, *args = UPSTREAM
        config.write_text(f"upstreams:\n  bench: {{ command: {command}, args: {json.dumps(args)} }}\n")
        servers = {}
        for engine in arguments.engine or ["wasm", "docker"]:
            own = SETTINGS | {"SANDBOX_ENGINE": engine}
            with_upstreams = own | {"SANDBOX_CONFIG_FILE": str(config)}
            servers[engine] = (
                Server(binary, folder, f"{engine}-none", own),
                Server(binary, folder, f"{engine}-calls", with_upstreams),
            )
        try:
            print(" | ".join(HEAD), flush=True)
            rows = [
                measure(engine, server, arguments.calls, arguments.rounds + 1)
                for engine, (_, server) in servers.items()
            ]
            for engine, pair in servers.items():
                print()
                compare({f"run_python, {engine}": small_run}, pair, ("without upstreams", "with"), arguments.runs)
            if arguments.write:
                report.keep(report.APART[1], engine_facts.machine(), {
                    "program": "tests/bench/calls.py",
                    "title": "Calls out of a sandbox",
                    "text": TEXT,
                    "head": HEAD,
                    "rows": rows,
                })
        finally:
            for pair in servers.values():
                for server in pair:
                    server.end()


if __name__ == "__main__":
    main()
