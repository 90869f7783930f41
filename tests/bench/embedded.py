"""The embedded engine and custom tools, in turns with the same server on Docker, the PyPI package `llm-sandbox`, and
the PyPI package `wasmtime` with a Python of its own.

- Of our server the whole call over stdio is timed (tools: over HTTP, like the published figures), of the others only
  their own interface. The module of `wasmtime` is compiled ahead and loaded once.
- Each answer is checked.
"""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import engine
import peer
import report
from lineup import POOL, Bench
from measure import GAP_S, Ran, Samples, right
from rows import Figures, Row, program, rounds
from server import Ours, Server, environment
from worker import Worker
from workloads import BY_KEY, PRINT

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "demo/tools"

ROWS = {
    "print": "print(2+2), a program",
    "cell": "print(2+2), a cell",
    "cell again": "the same right after another",
    "javascript": "console.log(2 + 2), a cell",
    "javascript again": "the same right after another",
    "pandas": "small pandas",
    "matplotlib": "matplotlib PNG",
    "first": "new session and first program, one kept ready",
    "rollback": "a cell that is stopped after a second, beyond that second",
}
CONTESTANTS = {"wasm": "embedded", "docker": "Docker", "peer": "PyPI llm-sandbox", "wasmtime": "PyPI wasmtime"}
SETTINGS = POOL | {"SANDBOX_MAX_SESSIONS": "2000", "SANDBOX_MAX_SESSIONS_PER_CLIENT": "2000"}
SETTINGS |= {"SANDBOX_SESSION_TTL_M": "600", "SANDBOX_EVICT_IDLE_M": "0"}

SETTLE_S = 2

# Mean milliseconds of a round trip that the authors of a similar tool server have published, measured on another
# machine; the numbers are the n of their sum for pi. The program is theirs, with integers of thousands of digits.
PUBLISHED = {
    "hello, WebAssembly": 5.4,
    "hello, Python": 2225.0,
    "empty, Python": 2145.0,
    "pi 1, C": 42.0,
    "pi 1000, C": 42.5,
    "pi 1000000, C": 160.3,
    "pi 10000000, C": 1209.8,
    "pi 1, Python": 1961.5,
    "pi 1000, Python": 3285.3,
    "pi 10000, Python": 35945.7,
}
PI = """\
pi = 0
for k in range({n}):
    pi += 1 / 16**k * (4 / (8*k+1) - 2 / (8*k+4) - 1 / (8*k+5) - 1 / (8*k+6))
print(round(pi, 9))
"""


def measure(bench: Bench, iterations: int, many: int) -> dict[str, Any]:
    stack = bench.stack
    wasm = stack.enter_context(bench.server("wasm", SETTINGS | {"SANDBOX_ENGINE": "wasm"}))
    docker = stack.enter_context(bench.server("docker", POOL | {"SANDBOX_ENGINE": "docker"}))
    servers = {"wasm": wasm, "docker": docker}
    runs = {key: Ours(server, bench.session(key)).run for key, server in servers.items()}
    BY_KEY["print"].check(runs["docker"](PRINT))
    limits = engine.Limits.of(docker.container_of(bench.session("docker")))
    runs |= others(bench, limits)
    # The Python of `wasmtime` has no libraries.
    rows = [
        Row({key: partial(program, run, BY_KEY[row]) for key, run in runs.items() if key != "wasmtime" or row == "print"})
        for row in ("print", "pandas", "matplotlib")
    ]
    rows.append(Row({key: partial(cells, server, bench.session(key)) for key, server in servers.items()}))
    rounds(rows, 1, Samples())
    samples = Samples()
    bench.step(f"programs, {iterations} rounds")
    rounds(rows, iterations, samples)
    found: dict[str, Any] = {"latency": {row: samples.of(row) for row in ROWS}}
    found["sizes"] = sizes(bench, wasm, many)
    found["tools"] = tools(bench, iterations)
    return found | {"notes": bench.notes}


def others(bench: Bench, limits: engine.Limits) -> dict[str, Callable[[str], Ran]]:
    def of_peer() -> Callable[[str], Ran]:
        return peer.Peer(peer.start_worker(bench, limits), bench.folder).run

    def of_wasmtime() -> Callable[[str], Ran]:
        assert bench.venv
        plain = Worker.script(bench.venv / "bin/python", "wasmtime_worker.py", bench.folder)
        bench.stack.callback(plain.end)
        plain.ask("load", module=str(TOOLS / "out/python-3.12.0.wasm"))
        return lambda code: Ran(**plain.ask("run", code=code))

    found = {
        "peer": bench.optional("PyPI llm-sandbox", of_peer),
        "wasmtime": bench.optional("PyPI wasmtime", of_wasmtime),
    }
    return {key: run for key, run in found.items() if run}


def cells(server: Server, session: str, number: int) -> Figures:
    """Measures calls that the others do not have, or not in the same form."""

    def cell(tool: str = "execute_code", **more: Any) -> tuple[float, dict[str, Any]]:
        seconds, answer = server.call(tool, **more)
        right(answer["stdout"] == "4\n", answer)
        return seconds, answer

    figures: Figures = {}
    for row, code, language in (("cell", PRINT, "python"), ("javascript", "console.log(2 + 2)", "javascript")):
        time.sleep(GAP_S)
        times = [cell(session_id=session, language=language, code=code)[0] for _ in range(4)]
        figures |= {row: times[0], f"{row} again": times[-1]}
    if number % 5 == 0:
        # Until the next pooled sandbox is ready.
        time.sleep(SETTLE_S)
        figures["first"], answer = cell("run_python", code=PRINT)
        server.close(answer["session_id"])
        server.call("execute_code", session_id=session, code="count = 41")
        seconds, answer = server.call("execute_code", session_id=session, code="while True: pass", timeout=1)
        right(answer["state"] == "rolled_back", answer)
        figures["rollback"] = seconds - 1
    return figures


def private_bytes(server: Server) -> list[int]:
    """The private bytes of each process of the server's sandboxes."""
    listed = subprocess.run(["pgrep", "--parent", str(server.process.pid)], capture_output=True, text=True).stdout
    found = []
    for pid in listed.split():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found.append(sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_")))
    return found


def sizes(bench: Bench, server: Server, many: int) -> dict[str, Any]:
    """Memory of a session, sessions a second, and many sessions open at once with a cell in each."""
    bench.step(f"{many} sessions at once")
    names = [bench.session(f"many-{number}") for number in range(many)]
    time.sleep(SETTLE_S)
    before = len(private_bytes(server))
    begun = time.perf_counter()
    for name in names:
        _, answer = server.call("execute_code", session_id=name, code=f"number = '{name}'\nprint(number)")
        right(answer["stdout"] == f"{name}\n", answer)
    opened = time.perf_counter() - begun
    mine = sorted(private_bytes(server))
    right(len(mine) == before + many, "a process for each session", len(mine), before)
    begun = time.perf_counter()
    for name in names:
        _, answer = server.call("execute_code", session_id=name, code="print(number)")
        right(answer["stdout"] == f"{name}\n", answer)
    again = time.perf_counter() - begun
    for name in names:
        server.close(name)
    return {
        "many": many,
        "opened_per_second": round(many / opened, 1),
        "cells_per_second": round(many / again, 1),
        "session_mb": round(mine[len(mine) // 2] / 1e6, 1),
        "all_gb": round(sum(mine) / 1e9, 2),
    }


class Web:
    """A server over HTTP with the tools of the demo, and a connection to it."""

    def __init__(self, bench: Bench) -> None:
        settings = {"SANDBOX_TOOLS_FILE": str(bench.folder / "tools"), "SANDBOX_TOOLSETS": "own"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings |= {"SANDBOX_HTTP_PORT": str(port), "SANDBOX_LOG_LEVEL": "ERROR"}
        env = environment(settings, bench.folder)
        self.process = subprocess.Popen([bench.binary, "serve", "--http"], cwd=bench.folder, env=env)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        deadline = time.monotonic() + 300
        while True:
            try:
                self.connection.request("GET", "/health")
                self.connection.getresponse().read()
                return
            except OSError:
                self.connection.close()
                right(time.monotonic() < deadline and self.process.poll() is None, "the server does not answer")
                time.sleep(0.1)

    def call(self, tool: str, **arguments: Any) -> tuple[float, dict[str, Any]]:
        version = "2026-07-28"
        meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {"MCP-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        begun = time.perf_counter()
        self.connection.request("POST", "/mcp", json.dumps(message), headers)
        response = self.connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - begun
        right(response.status == 200, "tools/call", response.status, body[:300])
        return seconds, json.loads(body)["result"]["structuredContent"]

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait()


def tools(bench: Bench, iterations: int) -> dict[str, Any]:
    """Measures the published table in the same form: each program as a tool, each round trip over HTTP."""
    if not (TOOLS / "out/pi.wasm").exists():
        bench.note("demo/tools/run.sh was not run, so tools are left out")
        return {}
    folder = bench.folder / "tools"
    folder.mkdir()
    for name in ("hello", "pi", "python3-slim", "c"):
        definitions = json.loads((TOOLS / f"{name}.json").read_text())
        for one in definitions if isinstance(definitions, list) else [definitions]:
            one["wasm_file"] = str(TOOLS / one["wasm_file"])
            one["readonly_dirs"] = {path: str(TOOLS / there) for path, there in one.get("readonly_dirs", {}).items()}
            (folder / f"{one['name']}.json").write_text(json.dumps(one))
    web = Web(bench)
    bench.stack.callback(web.end)
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "hello, WebAssembly": ("hello", {}, "Hello, world!\n"),
        "hello, Python": ("python3-slim", {"code": "print('Hello, world!')"}, "Hello, world!\n"),
        "empty, Python": ("python3-slim", {"code": ""}, ""),
    }
    for n in (1, 1000, 1_000_000, 10_000_000):
        cases[f"pi {n}, C"] = ("pi", {"n": n}, "")
    for n in (1, 1000, 10_000):
        cases[f"pi {n}, Python"] = ("python3-slim", {"code": PI.format(n=n)}, "")
    samples = Samples()
    bench.step(f"tools, {iterations} rounds")
    for number in range(-2, iterations):
        for row, (tool, arguments, stdout) in cases.items():
            time.sleep(GAP_S / 4)
            seconds, answer = web.call(tool, **arguments)
            right(answer["exit_code"] == 0 and (not stdout or answer["stdout"] == stdout), answer)
            if number >= 0:
                samples.add(row, "ours", seconds)
    return {row: samples.of(row)["ours"] for row in cases}


def ms(figure: float) -> str:
    return f"{figure:.2f} ms" if figure < 10 else f"{figure:.0f} ms"


def markdown(results: dict[str, Any]) -> str:
    def shown(row: str, key: str) -> str:
        found = results["latency"][row]
        if key not in found:
            return "-"
        ratio = f", {found[key]['median'] / found['wasm']['median']:.1f}x" if key != "wasm" else ""
        return f"{ms(found[key]['median'])}{ratio}"

    rows = [[title, *(shown(row, key) for key in CONTESTANTS)] for row, title in ROWS.items()]
    sizes = results["sizes"]
    many = (
        f"{sizes['many']:,} sessions open at once, with a variable in each: {sizes['session_mb']:g} MB of memory each "
        f"that is not shared, {sizes['all_gb']:g} GB in all; {sizes['opened_per_second']:g} sessions opened a second, "
        f"{sizes['cells_per_second']:g} cells a second, one after another."
    )
    return f"{report.table(['', *CONTESTANTS.values()], rows)}\n{many}"


def tools_markdown(results: dict[str, Any]) -> str:
    def ours(row: str, published: float) -> str:
        found = results["tools"].get(row)
        return f"{ms(found['median'])}, {published / found['median']:.0f}x faster" if found else "-"

    rows = [[row, ms(published), ours(row, published)] for row, published in PUBLISHED.items()]
    return report.table(["round trip", "published", "ours"], rows).rstrip()


def where(results: dict[str, Any]) -> str:
    return f"Medians, in turns; {report.where(results)}."
