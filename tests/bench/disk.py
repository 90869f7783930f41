#!/usr/bin/env python3
"""Measures how fast a cell of the embedded engine writes and reads a file in memory and on disk.

    tests/bench/disk.py [--binary FILE] [--megabytes N] [--rounds N] [--folder FOLDER]

Two servers take turns, one with SANDBOX_STORAGE=memory and one with disk. In each round a cell writes a new file in
pieces of a megabyte, another cell reads it, a third one reads it after the file was dropped from the cache of the host,
and a last one removes it. The table has the medians in megabytes a second, and the median ratio of the same round. The
file on disk is in FOLDER, by default /var/tmp. A write ends when the kernel has the bytes, as on any file system. No
figure is a failure; a wrong answer is.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from measure import right
from server import Server

ROOT = Path(__file__).resolve().parents[2]
WRITE = """
import os, time
piece, begun = os.urandom(1 << 20), time.perf_counter()
with open("data.bin", "wb", 0) as file:
    for _ in range({megabytes}):
        file.write(piece)
print(os.stat("data.bin").st_size, time.perf_counter() - begun)
"""
READ = """
import time
total, begun = 0, time.perf_counter()
with open("data.bin", "rb", 0) as file:
    while piece := file.read(1 << 20):
        total += len(piece)
print(total, time.perf_counter() - begun)
"""
REMOVE = """
import os, time
begun, total = time.perf_counter(), os.stat("data.bin").st_size
os.remove("data.bin")
print(total, time.perf_counter() - begun)
"""
PLACES = ("memory", "disk")


def settings(storage: str, megabytes: int, folder: Path) -> dict[str, str]:
    limit = f"{2 * megabytes + 64}MB"
    return {
        "SANDBOX_ENGINE": "wasm",
        "SANDBOX_STORAGE": storage,
        "SANDBOX_DATA_LIMIT": limit,
        "SANDBOX_DISK_LIMIT": limit,
        "SANDBOX_EXEC_TIMEOUT_S": "600",
        "SANDBOX_POOL_SIZE": "0",
        "TMPDIR": str(folder),
    }


def seconds(server: Server, code: str, size: int) -> float:
    """The seconds that the cell's own clock has measured."""
    _, answer = server.call("execute_code", session_id="bench", code=code, timeout_s=600)
    right(answer["status"] == "success", "the cell failed", answer)
    total, elapsed = answer["stdout"].split()
    right(int(total) == size, "not the whole file", answer["stdout"])
    return float(elapsed)


def forget(server: Server) -> None:
    """Drops the files that the server's sandboxes have open from the cache of the host."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text(encoding="utf-8")
    for child in children.split():
        for entry in Path(f"/proc/{child}/fd").iterdir():
            if "(deleted)" in os.readlink(entry):
                with entry.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    size = arguments.megabytes << 20
    acts = {"write": WRITE.format(megabytes=arguments.megabytes), "read": READ, "first read": READ, "remove": REMOVE}
    found: dict[tuple[str, str], list[float]] = {(act, place): [] for act in acts for place in PLACES}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as text:
        folder = Path(text)
        servers = {
            place: Server(arguments.binary.resolve(), folder, place, settings(place, arguments.megabytes, folder))
            for place in PLACES
        }
        try:
            for turn in range(arguments.rounds + 1):
                for act, code in acts.items():
                    for place in PLACES[:: 1 if turn % 2 else -1]:
                        if act == "first read" and place == "disk":
                            forget(servers[place])
                        elapsed = seconds(servers[place], code, size)
                        # The first round warms up.
                        if turn:
                            found[act, place].append(elapsed)
        finally:
            for server in servers.values():
                server.end()
    print(f"| a file of {arguments.megabytes} MiB | memory | disk | disk / memory, time | n |")
    print("|---|---:|---:|---:|---:|")
    for act in acts:
        ratios = [disk / memory for memory, disk in zip(found[act, "memory"], found[act, "disk"], strict=True)]
        speeds = [size / 1e6 / statistics.median(found[act, place]) for place in PLACES]
        memory, disk = (f"{speed:.0f} MB/s" for speed in speeds)
        print(f"| {act} | {memory} | {disk} | {statistics.median(ratios):.2f} | {arguments.rounds} |")


if __name__ == "__main__":
    main()
