"""Runs inside a container of the same image: a process that has loaded the libraries and has run each program once.
It runs each further program in a child of its own, forked either on demand or ahead, when no call waits for it.

A server that runs programs in forks of a Python process cannot be much faster: this process makes no checks, no
clean-up, and sends no answer within the measured time. It is a reference and not a proof: a fork of a smaller process,
or of a child prepared further, can be faster. The time is measured in this process.
"""

import gc
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from answers import Answer, answer_questions


def warm(code: str) -> Answer:
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})
    import matplotlib.pyplot as plt

    plt.close("all")
    return {}


def freeze() -> Answer:
    """Freezes the objects of the collector, which would otherwise touch, and so copy, every page in a child."""
    gc.collect()
    gc.freeze()
    return {}


def work(code: str, stdout: int, stderr: int) -> NoReturn:
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    ended = 0
    try:
        exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        ended = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # All output is written; a kernel closes files only after it has released the memory.
    os.close(1)
    os.close(2)
    os._exit(ended)


def read_all(pipe: int) -> str:
    with os.fdopen(pipe, "rb") as file:
        return file.read().decode()


class Child:
    """A child process that waits for its program."""

    def __init__(self) -> None:
        (code, self._code), (self._out, stdout), (self._err, stderr) = os.pipe(), os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._code)
            # The child gets its own copy of the pages that every run writes, before a call waits for it.
            exec(compile("import sys; print(end='', flush=True)", "main.py", "exec"), {"__name__": "__main__"})
            work(read_all(code), stdout, stderr)
        for end in (code, stdout, stderr):
            os.close(end)

    def outputs(self, code: str) -> Answer:
        os.write(self._code, code.encode())
        os.close(self._code)
        return {"stdout": read_all(self._out), "stderr": read_all(self._err)}

    def ended(self) -> Answer:
        return {"exit_code": os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])}


def run(code: str) -> Answer:
    """Runs a program on demand, from the fork to the end of the process."""
    begun = time.perf_counter()
    child = Child()
    answer = child.outputs(code) | child.ended()
    return answer | {"seconds": time.perf_counter() - begun}


def run_ahead(waiting: list[Child], code: str) -> Answer:
    """Runs a program in a waiting child, until all of its output has arrived: no call has to wait for its end."""
    child = waiting.pop()
    begun = time.perf_counter()
    outputs = child.outputs(code)
    seconds = time.perf_counter() - begun
    return outputs | child.ended() | {"seconds": seconds}


if __name__ == "__main__":
    shutil.copytree("/opt/sandbox/home", os.environ["HOME"], dirs_exist_ok=True)
    waiting: list[Child] = []
    commands: dict[str, Callable[..., Answer]] = {"warm": warm, "freeze": freeze}
    commands |= {"run": run, "run_ahead": partial(run_ahead, waiting)}
    answer_questions(commands.__getitem__, lambda do: waiting.append(Child()) if do in ("freeze", "run_ahead") else None)
