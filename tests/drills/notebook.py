"""Runs each list of cells as a Jupyter kernel does, and reports the result of each cell.

In: `[[{"code": .., "stdin": ..}, ..], ..]`. Out: `[{"cells": [{"stdout": .., "count": .., ..}, ..], "files":
[..]}, ..]`. Each list has a process of its own, forked from this one, which has imported nothing but IPython, and an
empty folder when it starts.
"""

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback

from IPython.core import displayhook, interactiveshell
from traitlets import Type
from traitlets.config import Config

# The most seconds that a list may take; only ends lists that hang.
PATIENCE = 20


class DisplayHook(displayhook.DisplayHook):
    """Keeps values out of standard output: a notebook gets them as messages of their own."""

    text = None

    def start_displayhook(self):
        self._is_active = True

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.text = format_dict.get("text/plain")

    def finish_displayhook(self):
        self._is_active = False


class Shell(interactiveshell.InteractiveShell):
    """IPython's shell, with the settings and ends of a kernel."""

    displayhook_class = Type(DisplayHook)

    def _showtraceback(self, etype, evalue, stb):
        # A traceback is a message of its own as well, even if the cell has replaced sys.stderr.
        sys.stderr.flush()
        os.write(2, (self.InteractiveTB.stb2text(stb) + "\n").encode(errors="backslashreplace"))

    def ask_exit(self):
        pass

    def enable_gui(self, gui=None):
        pass


def shell():
    settings = Config()
    settings.HistoryManager.hist_file = ":memory:"
    settings.InteractiveShell.colors = "nocolor"
    settings.InteractiveShell.display_page = True
    os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
    return Shell.instance(config=settings)


async def run(cells):
    notebook = shell()
    told = []
    for cell in cells:
        with contextlib.ExitStack() as files:
            outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            for number, output in enumerate(outputs, 1):
                os.dup2(output.fileno(), number)
            given = files.enter_context(tempfile.TemporaryFile())
            given.write((cell["stdin"] or "").encode())
            given.seek(0)
            os.dup2(given.fileno(), 0)
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            notebook.displayhook.text = None
            result = await run_cell(notebook, cell["code"])
            for stream in sys.stdout, sys.stderr:
                stream.flush()
            told.append(outcome(notebook, result) | dict(zip(("stdout", "stderr"), map(contents, outputs))))
        # Between two cells a person reads, and pending tasks continue.
        await asyncio.sleep(0.01)
    return told


def outcome(notebook, result):
    error = result.error_before_exec or result.error_in_exec
    return {
        "result": notebook.displayhook.text,
        "success": bool(result.success),
        "exit": error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else None,
        "count": notebook.execution_count - 1,
    }


async def run_cell(notebook, code):
    """Runs a cell as ipykernel does: in a running loop, and awaited only if the cell needs that."""
    cell, error = code, None
    try:
        cell = notebook.transform_cell(code)
    except Exception:
        error = sys.exc_info()
    if notebook.should_run_async(code, transformed_cell=cell, preprocessing_exc_tuple=error):
        return await notebook.run_cell_async(
            code, store_history=True, transformed_cell=cell, preprocessing_exc_tuple=error
        )
    return notebook.run_cell(code, store_history=True)


def contents(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def files():
    found = []
    for folder, _, names in os.walk("."):
        found += [os.path.relpath(os.path.join(folder, name)) for name in names]
    return sorted(found)


def tell(cells, channel):
    try:
        told = asyncio.new_event_loop().run_until_complete(run(cells))
    except BaseException:
        told = traceback.format_exc()
    with os.fdopen(channel, "w") as channel:
        json.dump(told, channel)


def main():
    everything = []
    for cells in json.load(sys.stdin):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            tell(cells, theirs)
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as channel:
            # The child writes everything at the end.
            ended = select.select([channel], (), (), PATIENCE)[0]
            told = channel.read() if ended else '"it does not end"'
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        everything.append({"cells": json.loads(told), "files": files()})
        for entry in os.scandir("."):
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
    json.dump(everything, sys.stdout)


main()
