"""A helper process that answers one line of JSON with one line of JSON, and measures times itself, so that no figure
contains the lines between it and the harness."""

import json
import select
import subprocess
from pathlib import Path
from typing import Any

from measure import Wrong

PATIENCE_S = 300


class Worker:
    def __init__(self, command: list[str], log: Path) -> None:
        self._log = open(log, "wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        try:
            self._input.write(json.dumps({"do": do} | given).encode() + b"\n")
        except BrokenPipeError:
            raise Wrong("the helper has ended", self._process.wait(PATIENCE_S)) from None
        # There is one answer to one question, so nothing of another line can follow this one.
        line = b""
        while not line.endswith(b"\n"):
            if not self._poll.poll(PATIENCE_S * 1000):
                raise Wrong("the helper does not answer", do)
            piece = self._output.read(1 << 16)
            if not piece:
                raise Wrong("the helper has ended", self._process.wait(PATIENCE_S))
            line += piece
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Wrong(do, answer["error"])
        return answer

    def end(self) -> None:
        self._input.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
