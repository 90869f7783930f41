#!/usr/bin/env python3
"""Measures how much later an upload is answered with the summary of a table than without.

One server on plain processes, or on another engine. Uploads of the same bytes take turns: under a name that has a
summary, and under one that has none.

    tests/bench/summary.py [--binary FILE] [--uploads N] [--engine local|docker|wasm]

A second line of the table has two names without a summary, whose difference is the noise. No figure is a failure; an
upload that is refused is, and the number of uploads without a summary is printed.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import right
from policy import free_port, until_answered
from server import environment
from turns import compare

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1_000_000


def content() -> bytes:
    """A table of sales of a megabyte."""
    draw = random.Random(1)
    lines, size = ["id,day,region,revenue,units,note,paid,code\n"], 0
    while size < SIZE:
        day = f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        region, note = draw.choice(["North", "South", "East"]), draw.choice(["", "ok", "late"])
        paid = draw.choice(["true", "false"])
        amount = f"{draw.random() * 1000:.2f},{draw.randint(1, 99)}"
        lines.append(f"{len(lines)},{day},{region},{amount},{note},{paid},{draw.randint(1, 9999):05}\n")
        size += len(lines[-1])
    return "".join(lines).encode()[:SIZE]


class Uploads:
    """Uploads under one name into a session of its own, over a connection of its own."""

    def __init__(self, port: int, name: str, content: bytes) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._path = f"/files/summary-{name[0]}-{name[2:]}/{name}"
        self._content = content
        self.without = 0

    def attempt(self) -> bool:
        """Whether an upload is answered without a summary."""
        before = self.without
        self.once()
        return self.without > before

    def once(self) -> float:
        begun = time.perf_counter()
        self._connection.request("PUT", self._path, self._content)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - begun
        right(response.status in (200, 201), "the file is refused", answer)
        self.without += "summary" not in answer
        return seconds


def measure(port: int, uploads: int) -> None:
    kinds: dict[str, Callable[[Uploads], float]] = {"upload of 1 MB": Uploads.once}
    sales = content()
    for one, other in (("a.dat", "a.csv"), ("b.dat", "c.dat")):
        sides = Uploads(port, one, sales), Uploads(port, other, sales)
        # The first uploads may come before the sandbox is ready for summaries.
        until = time.monotonic() + (30 if other.endswith(".csv") else 0)
        while time.monotonic() < until and sides[1].attempt():
            pass
        sides[1].without = 0
        compare(kinds, sides, ("without", f"with, {other}"), uploads)
        print(f"\nwithout a summary: {sides[1].without} uploads of {other}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--engine", default="local")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder, port = Path(text), free_port()
        settings = {
            "SANDBOX_ENGINE": arguments.engine,
            "SANDBOX_POOL_SIZE": "0",
            "SANDBOX_HTTP_PORT": str(port),
        }
        # The variables by which the server finds its engine.
        settings |= {name: os.environ[name] for name in ("SANDBOX_IMAGE", "SANDBOX_RUNTIME_DIR") if name in os.environ}
        command = [arguments.binary.resolve(), "serve", "--http"]
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=folder, env=environment(settings, folder), **quiet) as server:
            try:
                until_answered(port, server)
                measure(port, arguments.uploads)
            finally:
                os.kill(server.pid, signal.SIGTERM)
        right(server.returncode == 0, "it does not end as it should", server.returncode)


if __name__ == "__main__":
    main()
