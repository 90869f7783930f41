"""The fork server: a Python in which the data libraries are loaded, from which each run is forked.

The agent starts it and asks it for spares. A spare is a process that is ready to run a program and
waits for the word, so that neither the interpreter's start, nor an import, nor even the fork is on
the way of a run. What a spare then does is what `python3 -P -s <script>` would do.

    agent --- {"wants": [modules]} and 3 files --> here   fork me one, when these are loaded
    here  --- {"missing": [..], "threads": n} ---> agent  everything is loaded
    spare --- its pid ---------------------------> agent  I wait
    agent --- one byte, perhaps its stdin -------> spare  the program is in its file: go
    spare --- exit code, processor time ---------> agent  done; and then it exits

No user code ever runs in the fork server itself, and it reads nothing that a run may have written:
no folder of the user's is on its path, -s keeps the user's own packages out, matplotlib is given the
image's settings. It is not dumpable, so nobody of the same uid can look into it.
"""

# What a script finds in __main__, in this order, before its first line.
BORN = dict(vars())

import gc

# Nothing that an import makes is garbage; looking for it takes a tenth of the loading time.
gc.disable()

import atexit
import ctypes
import importlib.machinery
import io
import itertools
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
import warnings

# For after a program has run: it may have replaced or deleted any of these.
from _io import _IOBase
from builtins import *
from os import _exit, getpid
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getpagesize, getrusage

# The program's file, its working directory, its PYTHONPATH (which begins with that directory), the
# modules to load, and a socket to the agent.
SCRIPT, DATA, PYTHON_PATH, PRELOAD, CONTROL = sys.argv[1:]

PRELOAD = PRELOAD.split(",") if PRELOAD else []
control = socket.socket(fileno=int(CONTROL))

# What is run when a module has been loaded, because the first time is like no other: caches fill,
# bytecode is specialised, submodules load.
EXERCISES = {
    "": """
import sys
print(2 + 2)
try:
    exec(compile("def f(x):\\n    return 1 / x\\nf(0)\\n", "<exercise>", "exec"), {})
except ZeroDivisionError:
    sys.excepthook(*sys.exc_info())
""",
    "pandas": """
import io, pandas
rows = "".join(f"{i},{i / 3},x{i % 5}\\n" for i in range(50))
table = pandas.read_csv(io.StringIO("a,b,c\\n" + rows))
for result in (table.sum(), table.describe(), table.groupby("c").b.mean(), table.head(), table):
    str(result)
str(pandas.DataFrame({"a": [1, 2, 3]}).sum())
""",
    "matplotlib.pyplot": """
import io
from matplotlib import pyplot
pyplot.plot([1, 2, 3])
pyplot.title("title")
pyplot.savefig(io.BytesIO(), format="png")
pyplot.close("all")
""",
    "seaborn": """
import io, pandas, seaborn
from matplotlib import pyplot
table = pandas.DataFrame({"x": list("abab"), "y": [1, 2, 3, 4]})
seaborn.barplot(data=table, x="x", y="y")
pyplot.savefig(io.BytesIO(), format="png")
pyplot.close("all")
""",
}

# A spare has touched the memory that these need before it is asked. Charts would gain a tenth, for
# twice the memory.
PREPARED_FOR = ("", "pandas")

MATPLOTLIBRC = "/opt/sandbox/home/.config/matplotlib/matplotlibrc"

libc = ctypes.CDLL(None)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
PR_SET_DUMPABLE = 4
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23
PAGE = getpagesize()


# --- loading -------------------------------------------------------------------------------------

loading = [*PRELOAD]
loaded = set()  # by their first name


def load():
    """Imports the modules and answers between them. Returns what could not be imported, and why."""
    missing = []
    exercise("")
    while loading:
        name = loading[0]
        try:
            __import__(name)
            exercise(name)
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {error}"[:200])
        loaded.add(name.partition(".")[0])
        del loading[0]
        answer(block=False)
    return missing


def exercise(name):
    """Runs the exercise of a module, if there is one, without a trace on the outputs."""
    outputs = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.StringIO()
    try:
        exec(compile(EXERCISES.get(name, ""), "<exercise>", "exec"), {"__name__": "exercise"})
    finally:
        sys.stdout, sys.stderr = outputs


# --- memory --------------------------------------------------------------------------------------

# Start, length and advice of a range of memory.
RANGE = struct.Struct("=QQi")


def survey():
    """What a run touches, learnt from one: ranges of memory. The first write to a page that is shared
    with us costs a run a microsecond or two, and there are thousands; a spare has time for them."""
    try:
        before = list(mappings())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pid = os.fork()
            if pid == 0:
                try:
                    become_main()
                    gc.enable()
                    for name in PREPARED_FOR:
                        exercise(name)
                    finish()
                    theirs.sendall(b"".join(RANGE.pack(*range) for range in touched(before)))
                finally:
                    _exit(0)
            theirs.close()
            ranges = b"".join(iter(lambda: ours.recv(1 << 16), b""))
            os.waitpid(pid, 0)
        return ranges
    except OSError:
        return b""  # no pagemap, as under gVisor: then a run pays for itself


def mappings():
    """Start, end and whether it is writable of each private mapping, without stacks and the kernel's."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            addresses, (read, write, _, shared), *_, name = line.rstrip("\n").split(" ", 5)
            if read == "r" and shared == "p" and not name.strip().startswith(("[stack", "[v")):
                start, end = addresses.split("-")
                yield int(start, 16), int(end, 16), write == "w"


def touched(before):
    """The parts of these mappings that this process has in its page table: of files all that it has
    read, of other memory what it has written and so has for itself."""
    PRESENT, EXCLUSIVE = 1 << 63, 1 << 56
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end, writable in before:
            flags = PRESENT | EXCLUSIVE if writable else PRESENT
            advice = MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ
            pagemap.seek(start // PAGE * 8)
            pages = struct.iter_unpack("=Q", pagemap.read((end - start) // PAGE * 8))
            length = 0
            for address, (page,) in zip(range(start, end, PAGE), pages):
                if page & flags == flags:
                    length += PAGE
                elif length:
                    yield address - length, length, advice
                    length = 0
            if length:
                yield end - length, length, advice


def prefault(ranges, asked):
    """Touches the ranges, until the word comes."""
    for number, (address, length, advice) in enumerate(RANGE.iter_unpack(ranges)):
        if number % 16 == 0 and asked():
            return
        libc.madvise(address, length, advice)


# --- forking -------------------------------------------------------------------------------------

# A request that came before what it wants was loaded.
early = None


class Born(BaseException):
    """Takes a new process out of the fork server's calls: below a program there is nothing."""


def serve():
    """Loads everything and answers for ever. Only returns in a process that was asked for: with its
    files, and with the memory to touch."""
    ranges = b""
    try:
        missing = load()
        with warnings.catch_warnings():
            pass  # what has warned once warns again
        gc.collect()
        libc.malloc_trim(0)
        gc.freeze()
        ranges = survey()
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        # Counted after the first fork, before which BLAS ends the threads that it can start again.
        threads = len(os.listdir("/proc/self/task"))
        control.send(json.dumps({"missing": missing[:10], "threads": threads}).encode())
        while True:
            answer(block=True)
    except Born as born:
        return born.args[0], ranges


def answer(block):
    """Answers one request, if there is one that can be."""
    global early
    if early is None:
        if not block and not is_readable(control):
            return
        message, files, _, _ = socket.recv_fds(control, 4096, 3)
        if not message:
            _exit(0)  # the agent is gone
        early = set(json.loads(message)["wants"]), files
    wants, files = early
    # A name that is not being loaded will not come.
    if wants & {name.partition(".")[0] for name in loading}:
        return
    early = None
    if fork_orphan():
        raise Born(files)
    for file in files:
        os.close(file)


def fork_orphan():
    """True in a new process whose parent is the agent, as it is of every process that it starts: so
    the agent learns how it ends, and what it does to its parent it does to PID 1, in vain."""
    try:
        middle = os.fork()
    except OSError:
        return False  # the agent sees the files closed
    if middle:
        os.waitpid(middle, 0)
        return False
    middle = os.getpid()
    try:
        if os.fork():
            _exit(0)
    except OSError:
        _exit(1)
    while os.getppid() == middle:
        time.sleep(0.0002)
    return True


def is_readable(sock):
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


# --- being a spare -------------------------------------------------------------------------------


def prepare(files, ranges):
    """Makes of this process what the agent would have made of one that it started."""
    link, out, err = files
    control.close()
    os.setsid()
    for file, number in (out, 1), (err, 2):
        os.dup2(file, number)
        os.close(file)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        # If memory runs out, the kernel shall take the run and nothing else.
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
    os.chdir(DATA)
    os.environ.pop("MATPLOTLIBRC")
    os.environ.update(own_environment)
    sys.path.insert(0, DATA)
    sys.argv[:] = [SCRIPT]
    sys.orig_argv[:] = [sys.orig_argv[0], "-P", "-s", SCRIPT]
    # What was drawn at random while loading. `random` sees to this itself, after a fork.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    link = socket.socket(fileno=link)
    link.set_inheritable(False)
    become_main()
    # What is garbage, or an open file, is then the program's.
    gc.freeze()
    gc.enable()
    link.send(struct.pack("=i", getpid()))
    prefault(ranges, lambda: is_readable(link))
    return link


def become_main():
    # What is loaded from now on is the program's. It may bring the last one to a new interpreter.
    preloaded.update(sys.modules, ["sitecustomize"])
    main = types.ModuleType("__main__")
    vars(main).clear()
    vars(main).update(BORN)
    main.__doc__ = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", SCRIPT)
    main.__file__ = SCRIPT
    if "__annotations__" in BORN:
        main.__annotations__ = {}
    sys.modules["__main__"] = main


def wait(link):
    """Waits for the word, which may bring the program's standard input."""
    message, files, _, _ = socket.recv_fds(link, 1, 1)
    if not message:
        _exit(0)  # not needed after all
    for file in files:
        os.dup2(file, 0)
        os.close(file)


# Of the files that can be imported.
SUFFIXES = importlib.machinery.all_suffixes()


def must_start_over():
    """True if there is a file that an interpreter reads when it starts or a library when it loads, or a
    module of the name of one that is loaded. Only a new interpreter does right by them."""
    for name in os.listdir(DATA):
        stem, dot, suffix = name.partition(".")
        if name == "matplotlibrc" or stem in preloaded and (
            dot + suffix in SUFFIXES
            or any(os.path.exists(f"{name}/__init__{suffix}") for suffix in SUFFIXES)
        ):
            return True
    return False


def has_own_settings():
    """True if an earlier run has left other settings for matplotlib than the image's."""
    settings = os.path.join(os.environ.get("MPLCONFIGDIR", ""), "matplotlibrc")
    return os.path.exists(settings) and read(settings) != read(MATPLOTLIBRC)


def read(path):
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return os.read(file, size)
    finally:
        os.close(file)


# --- running -------------------------------------------------------------------------------------

# An end by the signal, as a negative exit code: what an interpreter does that is interrupted.
INTERRUPTED = -signal.SIGINT


def show(error, traceback):
    """Does what the interpreter does with an exception that nobody catches. Returns the exit code."""
    if isinstance(error, SystemExit):
        return code_of(error)
    error.__traceback__ = traceback
    sys.last_exc = sys.last_value = error
    sys.last_type, sys.last_traceback = type(error), traceback
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        tell("sys.excepthook is missing")
        hook = sys.__excepthook__
    try:
        hook(type(error), error, traceback)
    except SystemExit as left:
        return code_of(left)
    except BaseException as failed:
        if failed.__context__ is error:
            failed.__context__ = None
        tell("Error in sys.excepthook:")
        sys.__excepthook__(type(failed), failed, failed.__traceback__.tb_next)
        tell("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, traceback)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def code_of(left):
    if left.code is None:
        return 0
    if isinstance(left.code, int):
        return left.code & 0xFF
    tell(left.code)
    return 1


def tell(text):
    try:
        print(text, file=sys.stderr)
    except Exception:
        pass


def flush_outputs():
    """False if the standard output could not be flushed, for which there is an exit code."""
    clean = True
    for stream in sys.stdout, sys.stderr:
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            if stream is sys.stdout:
                clean = False
                tell(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}")
    return clean


def finish():
    """Does the part of an interpreter's end that a program can see. The rest, taking apart what is
    loaded, takes 60 ms and serves nobody. False if the standard output could not be flushed."""
    try:
        threading._shutdown()
    except BaseException as error:
        show(error, error.__traceback__)
    atexit._run_exitfuncs()
    clean = flush_outputs()

    for name in "last_exc", "last_value", "last_type", "last_traceback":
        vars(sys).pop(name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.modules.pop("__main__", None)
    # The program's own modules are among the last.
    for name in list(itertools.takewhile(lambda name: name not in preloaded, reversed(sys.modules))):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(DATA):
            del sys.modules[name]
    # What was loaded before is frozen and does not count. The oldest generation only if there is
    # something in it: a full collection also gives up free lists, and so touches memory.
    gc.collect(2 if full_collections() > born_with else 1)
    for thing in gc.get_objects():
        if isinstance(thing, _IOBase):
            try:
                if not thing.closed and thing.writable():
                    thing.flush()
            except Exception:
                pass
    libc.fflush(None)
    return flush_outputs() and clean


def full_collections():
    return sum(generation["collections"] for generation in gc.get_stats()[1:])


# --- the process ---------------------------------------------------------------------------------

own_environment = {"PYTHONPATH": PYTHON_PATH}
if "MATPLOTLIBRC" in os.environ:
    own_environment["MATPLOTLIBRC"] = os.environ["MATPLOTLIBRC"]
os.environ.setdefault("MATPLOTLIBRC", MATPLOTLIBRC)
preloaded = set()
born_with = full_collections()

link = prepare(*serve())
stale = has_own_settings()
pid = getpid()
born_with = full_collections()
wait(link)
start = getrusage(RUSAGE_SELF)
if stale or must_start_over():
    # It closes our end of the link, which tells the agent.
    os.execv(sys.executable, sys.orig_argv)

code = 0
try:
    program = compile(read(SCRIPT), SCRIPT, "exec", dont_inherit=True)
except BaseException as error:
    code = show(error, None)
else:
    main = sys.modules["__main__"]
    try:
        exec(program, vars(main))
    except BaseException as error:
        code = show(error, error.__traceback__.tb_next)
    # Only now: they go with the module, and not with us.
    vars(main).pop("__file__", None)
    vars(main).pop("__cached__", None)
    del main, program
if not finish() and code == 0:
    code = 120
if code == INTERRUPTED:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(getpid(), signal.SIGINT)
if getpid() == pid:
    spent = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN))
    )
    try:
        link.send(struct.pack("=iQ", code, int((spent - start.ru_utime - start.ru_stime) * 1e6)))
    except OSError:
        pass  # the program has closed it, and the agent waits for our end
_exit(code)
