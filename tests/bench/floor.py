"""The floor: a fork of a warm process, in a container with the same limits, and on the host one byte through a
pipe and back."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import engine
from engine import LABEL
from measure import Ran, right
from worker import Worker
from workloads import TABLE, WORKLOADS, Failing, table

SETTINGS = [
    "a process in a container with the limits of ours that has every library loaded and every program run once gives "
    "each run a child of its own; no checks, no clean-up; timed inside",
    "fork, run, wait: from the fork to the end of the child; forked ahead: by a child that waits since the last call, "
    "until all of its output is there",
    "pipe: one byte to another process on the host and back",
]


class Floor:
    """One of the two floors: forked ahead, or on demand."""

    def __init__(self, process: "Warm", ahead: bool) -> None:
        self.key, self._do = ("ahead", "run_ahead") if ahead else ("floor", "run")
        self._process = process

    def run(self, code: str) -> Ran:
        return Ran(**self._process.worker.ask(self._do, code=code))

    def upload(self, name: str, content: bytes) -> float:
        raise NotImplementedError("files have no floor")

    def download(self, name: str) -> tuple[float, bytes]:
        return 0.0, engine.docker("exec", self._process.container, "cat", f"/mnt/data/{name}")

    def digest(self, name: str) -> str:
        return engine.sha256(self.download(name)[1])


class Warm:
    """The warm process in its container."""

    def __init__(self, run: str, folder: Path, image: str, options: list[str]) -> None:
        self.container = f"llm-sandbox-bench-floor-{run}"
        labelled = [f"--label={LABEL}={run}", *options]
        self.worker = Worker.contained("floor_worker.py", self.container, labelled, image, folder)
        # The answer shows that the container has started.
        self.worker.ask("warm", code="")
        write = f"cat > /mnt/data/{TABLE}"
        engine.docker("exec", "--interactive", self.container, "sh", "-c", write, stdin=table())
        for workload in WORKLOADS:
            if not isinstance(workload, Failing):
                self.worker.ask("warm", code=workload.code)
        self.worker.ask("freeze")


class Pipe:
    """Another process, which returns each byte that it receives."""

    def __init__(self, there: int, back: int) -> None:
        self._there, self._back = there, back

    def round_trip(self) -> float:
        begun = time.perf_counter()
        os.write(self._there, b"x")
        answer = os.read(self._back, 1)
        seconds = time.perf_counter() - begun
        right(answer == b"x", "a byte there and back", answer)
        return seconds


@contextmanager
def pipe() -> Iterator[Pipe]:
    (there_out, there_in), (back_out, back_in) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(there_in)
        while byte := os.read(there_out, 1):
            os.write(back_in, byte)
        os._exit(0)
    os.close(there_out)
    os.close(back_in)
    try:
        yield Pipe(there_in, back_out)
    finally:
        os.close(there_in)
        os.close(back_out)
        os.waitpid(pid, 0)
