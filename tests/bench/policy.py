#!/usr/bin/env python3
"""Measures the cost of a policy for a call.

Two callers of one server over HTTP call in turns, one with a policy and one without; sandboxes are plain processes.

    tests/bench/policy.py [--binary FILE] [--calls N]

There are four kinds of call: one that only answers, a cell, a program that prints a line, and a download of a file of 100
kB. A second table has two callers without a policy, whose difference is the noise. No figure is a failure; a wrong
answer is.
"""

import argparse
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import right
from server import content, environment
from turns import compare

ROOT = Path(__file__).resolve().parents[2]
VERSION = "2026-07-28"
SIZE = 100_000
CONFIG = """
policies:
  narrow:
    sandbox: { max_timeout: 50, max_memory_mb: 400, max_disk_mb: 200 }
    sessions: { max_workspaces_per_client: 8 }
    transport: { http: { rate_limit_per_minute: 1000000 } }
    tools: { toolsets: [run, code, sessions] }
callers:
  - { name: ann, token: secret-ann, policy: narrow }
  - { name: ben, token: secret-ben }
  - { name: cid, token: secret-cid }
"""


class Caller:
    """A caller with a connection of its own."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._access = {"Authorization": f"Bearer secret-{name}"}
        self._ids = itertools.count(1)

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        self._connection.request(method, path, body, self._access | headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def call(self, tool: str, **arguments: Any) -> tuple[float, dict[str, Any]]:
        """A tool call that must succeed: its seconds and its result."""
        begun = time.perf_counter()
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": params}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        status, body = self.request("POST", "/mcp", json.dumps(message).encode(), headers)
        right(status == 200, "the call is refused", status, body[:500])
        result = content(json.loads(body)["result"])
        return time.perf_counter() - begun, result


def runtimes(caller: Caller) -> float:
    seconds, answer = caller.call("list_runtimes")
    right(answer["runtimes"], "no runtimes")
    return seconds


def cell(caller: Caller) -> float:
    seconds, answer = caller.call("execute_code", session_id="policy", code="2+2", timeout=30)
    right(answer["result"] == "4", "not the result", answer)
    return seconds


def program(caller: Caller) -> float:
    seconds, answer = caller.call("run_python", session_id="policy", code="print(2+2)", timeout_s=30)
    right(answer["stdout"] == "4\n", "not the output", answer)
    return seconds


def download(caller: Caller) -> float:
    begun = time.perf_counter()
    status, body = caller.request("GET", "/files/policy/a.bin", None, {})
    right(status == 200 and len(body) == SIZE, "not the file", status)
    return time.perf_counter() - begun


KINDS: dict[str, Callable[[Caller], float]] = {
    "list_runtimes": runtimes,
    "cell 2+2": cell,
    "print(2+2)": program,
    "download of 100 kB": download,
}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def measure(port: int, calls: int) -> None:
    for other, name in (("ann", "with a policy"), ("cid", "another without")):
        # A server closes connections that are unused for long, so each table has its own.
        sides = (Caller(port, "ben"), Caller(port, other))
        for caller in sides:
            status, _ = caller.request("PUT", "/files/policy/a.bin", bytes(SIZE), {})
            right(status in (200, 201), "the file is refused", status)
        compare(KINDS, sides, ("without", name), calls)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder, port = Path(text), free_port()
        config = folder / "config.yaml"
        config.write_text(CONFIG, encoding="ascii")
        settings = {
            "SANDBOX_ENGINE": "local",
            "SANDBOX_POOL_SIZE": "0",
            "SANDBOX_CONFIG_FILE": str(config),
            "SANDBOX_HTTP_PORT": str(port),
        }
        command = [arguments.binary.resolve(), "serve", "--http"]
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=folder, env=environment(settings, folder), **quiet) as server:
            try:
                until_answered(port, server)
                measure(port, arguments.calls)
            finally:
                os.kill(server.pid, signal.SIGTERM)
        right(server.returncode == 0, "it does not end as it should", server.returncode)


def until_answered(port: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.02)
    right(False, "the server has ended", server.returncode)


if __name__ == "__main__":
    main()
