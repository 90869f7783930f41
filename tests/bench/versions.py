#!/usr/bin/env python3
"""Compares the speed of two builds of the server, each with its own sandbox image, on one Docker engine:

    python3 tests/bench/versions.py [--iterations N] BEFORE IMAGE_BEFORE AFTER IMAGE_AFTER

Both servers run at the same time. In each round every call is made once with each, the first of them in turns, so that
other work on the machine affects both alike. The table has the median of each in milliseconds, and the median of the
rounds' ratios, after to before. No figure is a failure; a wrong answer is.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import sleep

from measure import GAP_S, right
from server import Ours, Server
from workloads import BY_KEY, TABLE, table

PROGRAMS = ("print", "pandas", "group_by", "matplotlib")


class Build:
    """A server of one build, with a session and a workspace that are warm."""

    def __init__(self, binary: Path, image: str, folder: Path, name: str) -> None:
        settings = {"SANDBOX_ENGINE": "docker", "SANDBOX_IMAGE": image, "SANDBOX_POOL_SIZE": "1"}
        self.server = Server(binary.resolve(), folder, name, settings)
        _, first = self.server.call("run_python", code="0")
        self.session = Ours(self.server, first["session_id"])
        self.session.upload(TABLE, table())
        self.cell()
        for key in PROGRAMS:
            self.program(key)
        # The session, the workspace and a pooled sandbox.
        self.server.until_containers(3)

    def program(self, key: str) -> float:
        ran = self.session.run(BY_KEY[key].code)
        BY_KEY[key].check(ran)
        return ran.seconds

    def cell(self) -> float:
        seconds, answer = self.server.call("execute_code", code="n = 20\nn + 1")
        right(answer["result"] == "21", "cell", answer)
        return seconds

    def upload(self) -> float:
        return self.session.upload(TABLE, table())

    def pooled(self) -> float:
        """The first call of a session that the client does not name."""
        seconds, answer = self.server.call("run_python", code=BY_KEY["print"].code)
        right(answer["stdout"] == BY_KEY["print"].stdout, "first call", answer)
        self.server.close(answer["session_id"])
        self.server.until_containers(3)
        return seconds


def calls(build: Build) -> dict[str, Callable[[], float]]:
    programs = {key: lambda key=key: build.program(key) for key in PROGRAMS}
    return programs | {"cell": build.cell, "upload of 20 KB": build.upload, "first call, pooled": build.pooled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=40)
    for name in ("before", "image_before", "after", "image_after"):
        parser.add_argument(name, type=str if name.startswith("image") else Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = Build(given.before, given.image_before, Path(folder), "before")
        after = Build(given.after, given.image_after, Path(folder), "after")
        both = [calls(before), calls(after)]
        times: dict[str, list[list[float]]] = {key: [[], []] for key in both[0]}
        for turn in range(given.iterations):
            for key in times:
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    sleep(GAP_S)
                    times[key][which].append(both[which][key]() * 1e3)
        for build in (before, after):
            build.server.end()
    print(f"| call, {given.iterations} rounds | before, ms | after, ms | ratio |\n|---|---:|---:|---:|")
    for key, (old, new) in times.items():
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        print(f"| {key} | {statistics.median(old):.2f} | {statistics.median(new):.2f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
