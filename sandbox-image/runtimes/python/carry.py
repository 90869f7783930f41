"""Saves the variables of a workspace, one by one, for another interpreter; and restores them there.

The kernel runs this file as a module that is not in sys.modules, when a session is archived or restored. Variables are
saved as a row of records:

    length of the head (4 bytes) | length of the body (8 bytes) | head, JSON | body

    {"all": ["a", "b"]}                        first: all names
    {"name": "a"}                              the body is its value, pickled
    {"name": "b", "same_as": "a"}              the same object under another name
    {"name": "pd", "module": "pandas"}         imported again

Each value is pickled by itself, so that one that cannot be pickled does not affect others. Functions and classes of the
cells are saved with their code, and have the workspace's variables as their globals again.
"""

import contextlib
import importlib
import io
import json
import os
import pickle
import re
import signal
import struct
import sys
import time
import types
import warnings

HEAD = struct.Struct("<IQ")

# Maximum number of names that are reported, and of characters of a name or a reason.
MAX_NAMES, MAX_CHARS = 500, 100

# The variables that IPython adds.
ITS_OWN = re.compile(r"_+|_i+|_i?\d+|_ih|_oh|_dh|In|Out|_exit_code|__\w*__")

# Maximum length of the head of a record, in bytes.
MAX_HEAD = 1 << 20


class Left(Exception):
    """The reason why a variable is not saved."""


class TooMuch(Left):
    """There is no time for this variable or any other."""


class Chunks:
    """A file in memory that takes up to `room` bytes, and only until the time `until`."""

    def __init__(self, room, until):
        self.chunks, self.size, self.room, self.until = [], 0, room, until

    def write(self, chunk):
        chunk = bytes(chunk)
        self.size += len(chunk)
        if self.size > self.room:
            raise Left("it is too large")
        if time.monotonic() > self.until:
            raise Left("it takes too long")
        self.chunks.append(chunk)
        return len(chunk)


class Globals:
    """Stands for the workspace's variables if a function has them as its globals."""

    def __reduce__(self):
        return vars, (sys.modules["__main__"],)


def refuse_file(file):
    raise Left("it is an open file")


def pickler(namespace):
    """Returns the class that pickles values of a workspace; plain pickle's if there is no better one, as in tests
    without an image."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler

    class Pickler(cloudpickle.Pickler):
        # A file is more than the rest of its content.
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({io.TextIOWrapper: refuse_file})

        def _dynamic_function_reduce(self, function):
            reduced = super()._dynamic_function_reduce(function)
            if function.__globals__ is not namespace:
                return reduced
            make, (code, _, *rest), (state, slots), *more = reduced
            return make, (code, Globals(), *rest), (state, {**slots, "__globals__": {}}), *more

    return Pickler


@contextlib.contextmanager
def no_longer_than(seconds):
    """Interrupts Python code after this time. It cannot interrupt other code: then the agent gives up."""

    def interrupt(*_):
        raise Left("it takes too long")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        # None if the handler was not set from Python.
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def without(folder):
    """Imports nothing from the user's folder: a file there may have the name of a library."""
    path, sys.path[:] = sys.path[:], [name for name in sys.path if name not in ("", folder)]
    try:
        yield
    finally:
        sys.path[:] = path


class Report:
    """Records what became of each variable."""

    def __init__(self):
        self.variables, self.imports, self.lost = [], [], []

    def told(self):
        short = [name[:MAX_CHARS] for name in self.variables[:MAX_NAMES]]
        lost = [{"name": name[:MAX_CHARS], "why": why[:MAX_CHARS]} for name, why in self.lost[:MAX_NAMES]]
        return {
            "variables": short,
            "more": len(self.variables) - len(short),
            "imports": [name[:MAX_CHARS] for name in self.imports[:MAX_NAMES]],
            "lost": lost,
            "more_lost": len(self.lost) - len(lost),
        }


def reason(error):
    """Why something went wrong, in a few words of one line."""
    if isinstance(error, Left):
        return str(error)
    if isinstance(error, MemoryError):
        return "it is too large"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def carry_out(shell, target, data, each_bytes, total_bytes, each_ms, total_ms):
    """Writes the variables to this file descriptor."""
    report, until, left = Report(), time.monotonic() + total_ms / 1e3, total_bytes
    with without(data):
        kind = pickler(shell.namespace)
    names = {}
    for name, value in list(shell.namespace.items()):
        if type(name) is str and not ITS_OWN.fullmatch(name) and not shell.hidden(name, value):
            names[name] = value
    left -= write(target, {"all": [name[:MAX_CHARS] for name in names][:MAX_NAMES]})
    seen = {}
    for name, value in names.items():
        try:
            head, chunks = {"name": name}, []
            if type(value) is types.ModuleType and sys.modules.get(value.__name__) is value:
                head["module"] = value.__name__
            elif id(value) in seen:
                head["same_as"] = seen[id(value)]
            else:
                now = time.monotonic()
                if now > until:
                    raise TooMuch("the time is over")
                seconds = min(each_ms / 1e3, until - now)
                file = Chunks(min(each_bytes, left), now + seconds)
                with no_longer_than(seconds), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    kind(file, 5).dump(value)
                chunks = file.chunks
                seen[id(value)] = name
            left -= write(target, head, chunks)
            (report.imports if "module" in head else report.variables).append(head.get("module", name))
        except BaseException as error:
            report.lost.append((name, reason(error)))
    return report.told()


def write(target, head, chunks=()):
    """Writes a record. Returns its length."""
    head = json.dumps(head).encode()
    if len(head) > MAX_HEAD:
        raise Left("its name is too long")
    size = sum(map(len, chunks))
    for chunk in (HEAD.pack(len(head), size) + head, *chunks):
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(target, rest) :]
    return HEAD.size + len(head) + size


def carry_in(shell, source, data, count, each_ms, total_ms):
    """Restores the variables that can be read from this file descriptor."""
    report, until = Report(), time.monotonic() + total_ms / 1e3
    with without(data), contextlib.suppress(ImportError):
        import cloudpickle
    namespace = shell.namespace
    with open(source, "rb", closefd=False, buffering=1 << 20) as file:
        while start := file.read(HEAD.size):
            length, size = HEAD.unpack(start)
            head, body = json.loads(file.read(length)), file.read(size)
            if "all" in head:
                continue
            name = head["name"]
            try:
                seconds = min(each_ms / 1e3, until - time.monotonic())
                if seconds < 0:
                    raise TooMuch("the time is over")
                if "same_as" in head:
                    if head["same_as"] not in namespace:
                        raise Left(f"it was the same as {head['same_as']}")
                    namespace[name] = namespace[head["same_as"]]
                else:
                    with no_longer_than(seconds), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        if "module" in head:
                            namespace[name] = importlib.import_module(head["module"])
                        else:
                            namespace[name] = pickle.loads(body)
                (report.imports if "module" in head else report.variables).append(head.get("module", name))
            except BaseException as error:
                report.lost.append((name, reason(error)))
    # The number of the next cell follows from the workspace that was saved.
    inner = getattr(shell, "shell", None)
    if inner is not None:
        inner.execution_count = count + 1
    else:
        shell.count = count
    return report.told()
