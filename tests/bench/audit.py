#!/usr/bin/env python3
"""Measures the cost of the audit file for a call.

One client calls two servers in turns, one with the file and one without, as plain processes.

    tests/bench/audit.py [--binary FILE] [--calls N]

There are three kinds of call: one that only answers, one that runs a program that prints a line,
and an upload of 100 kB. The results are the median of the differences within a turn, and the difference of the medians.
The server's key is set for both, so that lines have MACs. A run starts a process, whose own time differs by half a
millisecond between two equal servers: the other two kinds show the cost of a line. No figure is a failure; a wrong
answer is.
"""

import argparse
import base64
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import Wrong, right
from server import Server, environment
from turns import WARM_UP, compare

ROOT = Path(__file__).resolve().parents[2]
CONTENT = base64.b64encode(bytes(n % 251 for n in range(100_000))).decode()


def runtimes(server: Server) -> float:
    seconds, answer = server.call("list_runtimes")
    right(answer["runtimes"], "no runtimes")
    return seconds


def program(server: Server) -> float:
    seconds, answer = server.call("run_python", session_id="audit", code="print(2+2)")
    right(answer["stdout"] == "4\n", "not the output", answer)
    return seconds


def upload(server: Server) -> float:
    file = {"filename": "a.bin", "content_base64": CONTENT, "overwrite": True}
    seconds, answer = server.call("upload_file", session_id="audit", **file)
    right(answer["size_bytes"] == 100_000, "not the size", answer)
    return seconds


KINDS: dict[str, Callable[[Server], float]] = {
    "list_runtimes": runtimes,
    "print(2+2)": program,
    "upload of 100 kB": upload,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    binary = arguments.binary.resolve()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        common = {
            "SANDBOX_ENGINE": "local",
            "SANDBOX_KEY_FILE": str(folder / "key"),
            "SANDBOX_POOL_SIZE": "0",
        }
        file = {"SANDBOX_AUDIT_FILE": str(folder / "audit.jsonl")}
        without = Server(binary, folder, "without", common)
        with_file = Server(binary, folder, "with", common | file)
        compare(KINDS, (without, with_file), ("without", "with the audit file"), arguments.calls)
        for server in (with_file, without):
            right(server.end() == 0, "it does not end as it should")
        lines = sum(1 for _ in open(folder / "audit.jsonl", encoding="ascii"))
        right(lines == len(KINDS) * (arguments.calls + WARM_UP) + 2, "not a line a call", lines)
        verified = subprocess.run(
            [binary, "audit", "verify", folder / "audit.jsonl"],
            env=environment({"SANDBOX_KEY_FILE": str(folder / "key")}, folder),
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if verified.returncode:
            raise Wrong("the chain is not whole", verified.stdout)
        print(f"\n{lines:,} lines, whole.")


if __name__ == "__main__":
    main()
