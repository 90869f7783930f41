"""Runs inside a container of the same image: a process that has the libraries loaded and has run
each program once, and that runs each further one in a child of its own, either forked when it is
asked for or, as nobody has to wait for that, ahead.

What runs a program in a fork of a Python process is hardly faster than that: there is no check, no
clean-up, no answer to be sent. It is a mark to measure by and not a proof; whoever forks from a
smaller process, or readies more of the child, may come below it. The time is taken in here.
"""

import gc
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

Answer = dict[str, Any]


def warm(code: str) -> Answer:
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})
    import matplotlib.pyplot as plt

    plt.close("all")
    return {}


def freeze() -> Answer:
    """Leaves the collector nothing to walk over in a child, which would copy every page of it."""
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
    # All is said now; a kernel closes files only after it has taken the memory down.
    os.close(1)
    os.close(2)
    os._exit(ended)


def read_all(pipe: int) -> str:
    with os.fdopen(pipe, "rb") as file:
        return file.read().decode()


class Child:
    """A process that waits for its program."""

    def __init__(self) -> None:
        (code, self._code), (self._out, stdout), (self._err, stderr) = os.pipe(), os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._code)
            # What every run touches is the child's own before anybody waits for it.
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
    """On demand, from the fork to the end of the process."""
    begun = time.perf_counter()
    child = Child()
    answer = child.outputs(code) | child.ended()
    return answer | {"seconds": time.perf_counter() - begun}


def run_ahead(waiting: list[Child], code: str) -> Answer:
    """By a child that is there, until all of its output is: nobody has to wait for its end."""
    child = waiting.pop()
    begun = time.perf_counter()
    outputs = child.outputs(code)
    seconds = time.perf_counter() - begun
    return outputs | child.ended() | {"seconds": seconds}


def main() -> None:
    shutil.copytree("/opt/sandbox/home", os.environ["HOME"], dirs_exist_ok=True)
    # What a program prints while it is only warmed up must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    waiting: list[Child] = []
    commands: dict[str, Callable[..., Answer]] = {"warm": warm, "freeze": freeze}
    commands |= {"run": run, "run_ahead": partial(run_ahead, waiting)}
    for line in sys.stdin:
        question = json.loads(line)
        do = question.pop("do")
        answers.write(json.dumps(commands[do](**question)) + "\n")
        if do in ("freeze", "run_ahead"):
            waiting.append(Child())


if __name__ == "__main__":
    main()
