"""Processes that are asked in lines and answer in lines.

A helper answers one line of JSON with one line of JSON, and measures times itself, so that no figure contains the lines
between it and the harness.
"""

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from measure import Wrong

PATIENCE_S = 300


class Process:
    """A process with pipes for lines."""

    def __init__(self, command: list[Any], stderr: Path, **more: Any) -> None:
        self._stderr = open(stderr, "wb")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr}
        # The harness handles Ctrl-C: a process ends when its input does, with all that it has started.
        self.process = subprocess.Popen(command, **pipes, bufsize=0, start_new_session=True, **more)
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._read = bytearray()

    def write_line(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._input, rest) :]

    def line(self) -> bytes:
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if not self._poll.poll(PATIENCE_S * 1000):
                raise Wrong("no answer from", self.process.args)
            piece = os.read(self._output, 1 << 16)
            if not piece:
                raise Wrong("it has ended", self.process.args, self.process.wait(PATIENCE_S))
            self._read += piece
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def has_more(self, seconds: float) -> bool:
        """Whether output can be read within this time."""
        return bool(self._poll.poll(seconds * 1000))

    def end(self) -> int:
        """Closes the input, as a client does; returns the exit code."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            code: int = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._stderr.close()
        return code


class Worker(Process):
    """A helper."""

    @classmethod
    def script(cls, python: Path, name: str, folder: Path) -> "Worker":
        """A script beside this one, run by this Python."""
        return cls([python, Path(__file__).with_name(name)], folder / f"{name}.log")

    @classmethod
    def contained(cls, script: str, name: str, options: list[str], image: str, folder: Path) -> "Worker":
        """A script beside this one, run in a container of this name and with these options."""
        code = "\n".join(Path(__file__).with_name(part).read_text() for part in ("answers.py", script))
        command = ["docker", "run", "--interactive", "--rm", f"--name={name}", *options, "--entrypoint=python3", image]
        return cls([*command, "-c", code], folder / f"{script}.log")

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        try:
            self.write_line(json.dumps({"do": do} | given).encode() + b"\n")
        except BrokenPipeError:
            raise Wrong("the helper has ended", self.process.wait(PATIENCE_S)) from None
        answer: dict[str, Any] = json.loads(self.line())
        if "error" in answer:
            raise Wrong(do, answer["error"])
        return answer
