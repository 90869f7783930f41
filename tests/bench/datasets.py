#!/usr/bin/env python3
"""Measures how fast a sandbox reads a dataset, and what datasets cost the start of a session.

    tests/bench/datasets.py [--engine wasm|docker]... [--binary FILE] [--megabytes N] [--rounds N] [--starts N]
                            [--folder FOLDER]

The same loop of Python reads the same file in turns: on the host, and in a sandbox of each engine, first after the
file was dropped from the cache of the host, then from the cache. The first table has megabytes a second and the share
of the host's own speed in the same round; medians. The file is in a folder of its own in FOLDER, by default that of
temporary files: if that is in memory, there is no first read. The second table compares the start of a session with
three datasets and without, each with its first program. No figure is a failure; a wrong answer is.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import right
from server import Server
from turns import compare

ROOT = Path(__file__).resolve().parents[2]
PIECE = 1 << 20
READ = """
import time
total, begun = 0, time.perf_counter()
with open({path!r}, "rb") as file:
    while piece := file.read(1 << 20):
        total += len(piece)
print(total, time.perf_counter() - begun)
"""
SETTINGS = {"SANDBOX_POOL_SIZE": "0", "SANDBOX_EXEC_TIMEOUT_S": "600", "SANDBOX_MAX_SESSIONS": "100"}


def make(path: Path, megabytes: int) -> None:
    """Makes a file that no file system stores as less than it is."""
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(PIECE))
        file.flush()
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    """Drops the file from the cache of the host."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def speed(output: str, size: int) -> float:
    """Megabytes a second, from the output of the program."""
    total, seconds = output.split()
    right(int(total) == size, "not the whole file", output)
    return size / 1e6 / float(seconds)


def on_host(path: Path) -> str:
    command = [sys.executable, "-c", READ.format(path=str(path))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def in_sandbox(server: Server, name: str) -> str:
    code = READ.format(path=f"/data/bench/{name}")
    _, answer = server.call("run_python", session_id="read", code=code, timeout_s=600)
    right(answer["exit_code"] == 0, "the program failed", answer["stderr"])
    return str(answer["stdout"])


def measure_reads(servers: dict[str, Server], path: Path, rounds: int) -> None:
    size = path.stat().st_size
    readers: dict[str, Callable[[], str]] = {"host": lambda: on_host(path)}
    for engine, server in servers.items():
        # The session starts, and Python has loaded what it needs.
        server.call("run_python", session_id="read", code="print(1)")
        readers[engine] = lambda server=server: in_sandbox(server, path.name)  # type: ignore[misc]
    print("| read | engine | MB/s | share of the host's | n |")
    print("|---|---|---:|---:|---:|", flush=True)
    for kind in ("first", "cached"):
        found: dict[str, list[float]] = {reader: [] for reader in readers}
        for turn in range(rounds):
            # The order changes from turn to turn.
            order = list(readers)[turn % len(readers) :] + list(readers)[: turn % len(readers)]
            for reader in order:
                if kind == "first":
                    forget(path)
                else:
                    on_host(path)
                found[reader].append(speed(readers[reader](), size))
        for reader, speeds in found.items():
            shares = [one / host for one, host in zip(speeds, found["host"], strict=True)]
            share = statistics.median(shares)
            print(f"| {kind} | {reader} | {statistics.median(speeds):.0f} | {share:.0%} | {rounds} |", flush=True)
    print()


def started(server: Server) -> float:
    """The seconds that a new session and its first program take."""
    seconds, answer = server.call("run_python", session_id="start", code="print(2+2)")
    right(answer["stdout"] == "4\n", "not the output", answer)
    server.close("start")
    return seconds


def settings(engine: str, config: Path) -> dict[str, str]:
    return SETTINGS | {"SANDBOX_ENGINE": engine, "SANDBOX_CONFIG_FILE": str(config)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=["wasm", "docker"])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    binary = arguments.binary.resolve()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as text:
        folder = Path(text)
        # Sandboxes may run as another user.
        folder.chmod(0o755)
        names = ["bench", "second", "third"]
        for name in names:
            (folder / name).mkdir()
        path = folder / "bench/data.bin"
        make(path, arguments.megabytes)
        lines = [f"  - {{ name: {name}, path: {folder / name} }}\n" for name in names]
        three, none = folder / "three.yaml", folder / "none.yaml"
        three.write_text("datasets:\n" + "".join(lines), encoding="utf-8")
        none.write_text("", encoding="utf-8")
        for engine in arguments.engine or ["wasm"]:
            server = Server(binary, folder, f"{engine}-three", settings(engine, three))
            other = Server(binary, folder, f"{engine}-none", settings(engine, none))
            try:
                measure_reads({engine: server}, path, arguments.rounds)
                if arguments.starts:
                    sides, kinds = (other, server), {f"new session and program, {engine}": started}
                    compare(kinds, sides, ("none", "three datasets"), arguments.starts)
                    print()
            finally:
                for one in (server, other):
                    one.end()


if __name__ == "__main__":
    main()
