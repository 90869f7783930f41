"""The fork server: a Python in which the data libraries are loaded, from which each run is forked.

The agent starts it and asks it for spares. A spare is a process that is ready to run a program and waits for the
start signal, so that a run does not wait for the interpreter's start, an import or the fork. A spare then does what
`python3 -P -s <script>` would do.

    agent --- {"wants": [modules]} and 4 files --> here   fork a spare when these are loaded
    here  --- {"state": "guarded"} --------------> agent  user code cannot look into this process any more
    here  --- {"state": "loaded", ..} -----------> agent  everything is loaded
    spare --- its pid ---------------------------> agent  the spare waits
    agent --- one byte, perhaps its stdin -------> spare  the start signal: the program is in its file
    spare --- exit code, processor time, facts --> agent  the program is done; now the spare may be ended
          or one byte                                     a new interpreter runs the program better

    agent --- {"wants": [], "kernel": true}, 2 files --> here   fork a spare that runs cells (kernel.py)
    agent --- {.., "summary": {..}}, 2 files ----------> here   fork a process for a file (summary.py, page.py)

No user code ever runs in the fork server itself, and it reads nothing that a run may have written: no folder of the
user's is on its path, -s keeps the user's own packages out, and its home is the image's, where matplotlib finds its
settings and its list of fonts, and which cannot be written to. It is not dumpable, so that no process of the same uid
can look into it.

The order of events, which is the order of this file's last 70 lines:

    1. serve()       loads, learns what a run touches, and forks; the fork server never leaves it
    2. prepare()     makes a forked child what a new interpreter would be
    3. touch_pages() uses the time until the child is needed
    4. wait()        waits for the start signal
    5. exec          runs the program at module level, so that there is no frame of a function here below its frames
    6. leave()       reports how the program ended, after all that it has registered with atexit

These lines are therefore in no `main()`, and code of other files (facts.py) is not in sys.modules: programs could see
either.
"""

# The names in __main__ that a script finds, in this order, before its first line.
FRESH_MAIN = dict(vars())

import ctypes

# Before anything else: a run may be in progress, and must not look into this process.
libc = ctypes.CDLL(None)
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)

import gc

# Imports make no garbage, and the search for garbage takes a tenth of the loading time.
gc.disable()

import atexit
import contextvars
import faulthandler
import fcntl
import functools
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

# Imported now, because the program may replace or delete any of these.
from _io import _IOBase
from builtins import *
from gc import get_objects, get_stats
from os import _exit, getpid
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getpagesize, getrusage

# The program's file, its working directory, its PYTHONPATH (which begins with that directory), the
# modules to load, a socket to the agent, and whether there will be cells.
SCRIPT, DATA, PYTHON_PATH, PRELOAD, CONTROL, CELLS = sys.argv[1:]

# Loads a module of the runtime's own, which is not in sys.modules, where programs could find it.
def load_own(name):
    module = types.ModuleType(name)
    module.__file__ = os.path.join(os.path.dirname(__file__), name + ".py")
    with open(module.__file__) as file:
        exec(compile(file.read(), module.__file__, "exec"), vars(module))
    return module


facts = load_own("facts")
known = facts.Facts()

PRELOAD = PRELOAD.split(",") if PRELOAD else []
control = socket.socket(fileno=int(CONTROL))


def tell(state, **more):
    control.send(json.dumps({"state": state, **more}).encode())


tell("guarded")

# Code to run when a module has been loaded, because the first time is slow: caches fill, bytecode is specialised,
# submodules load.
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

# The exercises whose memory a spare has touched before it is asked. Charts would gain a tenth, for twice the memory.
PREPARED_FOR = ("", "pandas")

# The initial files of a home; the home of a run is a copy.
HOME = "/opt/sandbox/home"
MATPLOTLIB = HOME + "/.config/matplotlib"
MATPLOTLIBRC = MATPLOTLIB + "/matplotlibrc"

# The variables of the fork server's environment that differ from a run's.
ENVIRONMENT = {"HOME": HOME, "MPLCONFIGDIR": MATPLOTLIB, "MATPLOTLIBRC": MATPLOTLIBRC}

libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
fflush = libc.fflush
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23
PAGE = getpagesize()


loading = [*PRELOAD]


def load():
    """Imports the modules and answers requests between them. Returns the modules that could not be imported, and
    why."""
    missing = []
    sys.meta_path.insert(0, MatplotlibFolders)
    exercise("")
    while loading:
        name = loading[0]
        low = low_numbers()
        try:
            __import__(name)
            exercise(name)
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {error}"[:200])
        finally:
            for file in low:
                os.close(file)
        del loading[0]
        answer(block=False)
    MatplotlibFolders.give_back()
    if CELLS:
        load_kernel()
    return missing


def low_numbers():
    """Takes the lowest numbers of files. Files that libraries open and keep, such as fonts, then get higher ones, and a
    program's own files have the numbers that they have in a new interpreter."""
    files = [os.open(os.devnull, os.O_RDONLY)]
    while files[-1] < HIGH // 2:
        files.append(os.dup(files[0]))
    return files


# Modules that only kernels use: programs do not find them in sys.modules.
of_kernels = {}
own_modules = ()


def load_kernel():
    """Loads the modules that kernels consist of."""
    global own_modules
    before = set(sys.modules)
    own_modules = load_own("kernel"), load_own("shell")
    try:
        import IPython.core.interactiveshell
        import stack_data  # for the first traceback, when the user's folder is on the path
    except ImportError:
        pass  # tests without an image have a plain shell
    of_kernels.update((name, module) for name, module in sys.modules.items() if name not in before)


class MatplotlibFolders:
    """While matplotlib is loaded, its folders are the image's. Otherwise it would reject them, because it cannot write
    there, and make its own list of fonts from all folders that it searches."""

    replaced = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Replaces the folders. It is called before each module of matplotlib is loaded, and finds no module itself."""
        matplotlib = sys.modules.get("matplotlib")
        if not cls.replaced and name.startswith("matplotlib.") and hasattr(matplotlib, "get_cachedir"):
            for function in "get_configdir", "get_cachedir":
                cls.replaced[function] = getattr(matplotlib, function)
                setattr(matplotlib, function, lambda: MATPLOTLIB)

    @classmethod
    def give_back(cls):
        """Restores matplotlib to what it is if a run loads it."""
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
        if not cls.replaced:
            return
        for function, original in cls.replaced.items():
            setattr(sys.modules["matplotlib"], function, original)
        cls.replaced.clear()
        paths = getattr(sys.modules.get("matplotlib.style"), "USER_LIBRARY_PATHS", None)
        if paths and (own := own_environment["MPLCONFIGDIR"]):
            paths[:] = [os.path.join(os.path.realpath(own), "stylelib")]


def exercise(name):
    """Runs the exercise of a module, if there is one, without output."""
    outputs = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.StringIO()
    try:
        exec(compile(EXERCISES.get(name, ""), "<exercise>", "exec"), {"__name__": "exercise"})
    finally:
        sys.stdout, sys.stderr = outputs


# Start, length and advice of a range of memory.
RANGE = struct.Struct("=QQi")


def record_touched_pages():
    """Returns the ranges of memory that a run touches, learnt from a trial run. The first write to a page that is
    shared with the fork server costs a run a microsecond or two, and there are thousands of pages; a spare has time for
    them."""
    before = list(mappings())
    ours, theirs = pair()
    null = os.open(os.devnull, os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        ours.close()
        files = [theirs.detach(), null, os.dup(null), os.dup(null)]
        raise ForkedChild(files, b"", before, False, False)
    os.close(null)
    theirs.close()
    with ours:
        try:
            ours.recv(4)
            ours.send(b"\1")
            # Under gVisor there are no ranges, because there is no pagemap. A run then touches its pages itself.
            ranges = b"".join(iter(lambda: ours.recv(1 << 16), b""))
            advices = {advice for _, _, advice in RANGE.iter_unpack(ranges)}
            return ranges if advices <= {MADV_POPULATE_READ, MADV_POPULATE_WRITE} else b""
        except (OSError, struct.error):
            return b""
        finally:
            os.waitpid(pid, 0)


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def mappings():
    """Start, end and whether it is writable of each private mapping, without stacks and the system's own mappings."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            addresses, (read, write, _, shared), *_, name = line.rstrip("\n").split(" ", 5)
            if read == "r" and shared == "p" and not name.strip().startswith(("[stack", "[v")):
                start, end = addresses.split("-")
                yield int(start, 16), int(end, 16), write == "w"


def touched_pages(before):
    """The parts of these mappings that are in this process's page table: of read-only ones the pages that it has read,
    of writable ones the pages that it has written and so has for itself."""
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


def touch_pages(ranges, asked):
    """Touches the ranges, until the start signal comes."""
    for number, (address, length, advice) in enumerate(RANGE.iter_unpack(ranges)):
        if number % 16 == 0 and asked():
            return
        libc.madvise(address, length, advice)


# A request that came before the modules that it wants were loaded.
pending_request = None

# The signal at which a program writes its stack, and the lowest number for the file to which it writes.
ASKED, HIGH = signal.SIGURG, 60

# The parent that a new process has for its first milliseconds.
intermediate_parent = None


class ForkedChild(BaseException):
    """Leaves the fork server's calls in a new process, because there must be no frames below a program. The arguments:
    its files, the memory to touch, the mappings to study if it is there for that, whether a run already waits for it,
    and whether it is a kernel."""


def serve():
    """Loads everything and answers requests for ever. Only returns in a new process, with the arguments of
    ForkedChild."""
    ranges = b""
    try:
        missing = load()
        with warnings.catch_warnings():
            pass  # a warning that was shown once is shown again
        gc.collect()
        make_immortal()
        libc.malloc_trim(0)
        gc.freeze()
        ranges = record_touched_pages()
        # Counted after the first fork, before which BLAS ends the threads that it can start again.
        threads = len(os.listdir("/proc/self/task"))
        tell("loaded", missing=missing[:10], threads=threads)
        while True:
            answer(block=True, ranges=ranges)
    except ForkedChild as child:
        return child.args


# The number of references of an object that is never freed. The interpreter leaves this number as it is.
IMMORTAL = 0xFFFFFFFF


def make_immortal():
    """Makes all loaded objects immortal. Otherwise each use of an object writes its number of references, and a run
    gets copies of thousands of pages: half of the memory of a spare, and a fifth of the time of a small program."""
    numpy, memory = sys.modules.get("numpy"), None
    if numpy:
        memory = numpy.frombuffer((ctypes.c_uint32 * (1 << 45)).from_address(PAGE), "uint32")
    tracked = gc.get_objects()
    # A few at a time: after a large list is freed, malloc keeps all smaller pieces.
    for start in range(0, len(tracked), 1000):
        some = tracked[start : start + 1000]
        found = some + gc.get_referents(*some)
        # The collector does not know the objects that code refers to.
        codes = [function.__code__ for function in some if type(function) is types.FunctionType]
        while codes:
            parts = [part for code in codes for part in (code.co_names, code.co_consts, *code.co_consts)]
            found += codes + parts
            codes = [part for part in parts if type(part) is types.CodeType]
        if memory is None:
            for address in set(map(id, found)):
                ctypes.c_uint32.from_address(address).value = IMMORTAL
        else:
            memory[(numpy.fromiter(map(id, found), "intp", len(found)) - PAGE) // 4] = IMMORTAL


def answer(block, ranges=b""):
    """Answers one request, if there is one that can be answered now."""
    global pending_request
    if pending_request is None:
        if not block and not is_readable(control):
            return
        message, files, _, _ = socket.recv_fds(control, 4096, 4)
        if not message:
            _exit(0)  # the agent has ended
        request = json.loads(message)
        if "summary" in request:
            return summarize(request["summary"], files)
        pending_request = set(request["wants"]), request["kernel"], files
    wants, kernel, files = pending_request
    # A module that is not to be loaded is not waited for.
    if wants & {name.partition(".")[0] for name in loading} or kernel and not own_modules:
        return
    pending_request = None
    if fork_orphan():
        raise ForkedChild(files, ranges, None, bool(wants), kernel)
    for file in files:
        os.close(file)


# The modules that summarize files and draw pages, once one was used: loading them takes longer than most summaries.
summaries = pages = None


def summarize(request, files):
    """Forks a process that summarizes the second of these files, or draws a page of it. It never returns."""
    global summaries, pages
    summaries, pages = summaries or load_own("summary"), pages or load_own("page")
    if fork_orphan():
        control.close()
        link, number = files
        libc.prctl(PR_SET_NAME, b"summary", 0, 0, 0)  # so that lists of processes tell it from spares
        summaries.serve(socket.socket(fileno=link), number, request, facts, pages)
    for file in files:
        os.close(file)


def fork_orphan():
    """Returns True in a new process whose parent is the agent, as that of all processes that it starts: so the agent
    learns how the process ends, and signals of the process to its parent go to PID 1, on which they have no effect."""
    global intermediate_parent
    try:
        child = os.fork()
    except OSError:
        return False  # the agent sees the files closed
    if child:
        os.waitpid(child, 0)
        return False
    intermediate_parent = os.getpid()
    try:
        if os.fork():
            _exit(0)
    except OSError:
        _exit(1)
    return True


def is_readable(sock):
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def prepare(files, study, awaited, kernel):
    """Makes this process what it would be if the agent had started it."""
    if kernel:
        null = os.open(os.devnull, os.O_RDWR)
        files[1:1] = null, os.dup(null)
    else:
        for name in of_kernels:
            sys.modules.pop(name, None)
    link, out, err, stack = files
    control.close()
    for file, number in (out, 1), (err, 2):
        os.dup2(file, number)
        os.close(file)
    # At its deadline a program is asked for its stack. The number of the file is so high that no other file gets it.
    faulthandler.register(ASKED, fcntl.fcntl(stack, fcntl.F_DUPFD_CLOEXEC, HIGH), all_threads=False)
    os.close(stack)
    # Replaces random states that were set while loading. `random` does this itself after a fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    high = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, HIGH + 1)
    os.close(link)
    link = socket.socket(fileno=high)
    # Garbage and open files that come from now on are the program's.
    gc.freeze()
    become_main()
    if awaited or kernel:
        # While a run is in progress, the fork server may be stopped, and a stopped process does not reap.
        wait_for_orphanhood()
    if not study:
        give_to_the_user()
    gc.enable()
    # A kernel has more to prepare, and sends its pid again when it waits.
    link.send(struct.pack("=i", getpid()))
    return link


def give_to_the_user():
    """The last step: from here on imports may load the user's files. The process is still not dumpable while it waits,
    because programs and cells run beside it."""
    MatplotlibFolders.give_back()
    for name, value in own_environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.argv[:] = [SCRIPT]
    sys.orig_argv[:] = [sys.orig_argv[0], "-P", "-s", SCRIPT]
    sys.path.insert(0, DATA)
    os.chdir(DATA)


def wait_for_orphanhood():
    """Waits until the agent is the parent, and the parent before it has ended. That takes milliseconds; gives up after
    a second."""
    for _ in range(5000):
        if not exists(intermediate_parent):
            break
        time.sleep(0.0002)


def exists(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def become_main():
    # Modules that are loaded from now on are the program's. A file of the user's with the name sitecustomize leads to a
    # new interpreter.
    preloaded.update(sys.modules, ["sitecustomize"])
    main = types.ModuleType("__main__")
    vars(main).clear()
    vars(main).update(FRESH_MAIN)
    main.__doc__ = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", SCRIPT)
    main.__file__ = SCRIPT
    if "__annotations__" in FRESH_MAIN:
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main
    leaving.append(main)


def wait(link):
    """Waits for the start signal, which may bring the program's standard input."""
    message, files, _, _ = socket.recv_fds(link, 1, 1)
    if not message:
        _exit(0)  # not needed after all
    # Not earlier: by its session the agent tells what runs no user's code.
    os.setsid()
    if study is None:
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        # If memory runs out, the system must kill the run and nothing else. A spare that waits is not a run.
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
    for file in files:
        os.dup2(file, 0)
        os.close(file)
    if intermediate_parent:
        wait_for_orphanhood()


# The suffixes of files that can be imported.
SUFFIXES = importlib.machinery.all_suffixes()


def must_re_exec():
    """True if the user's folder has a file that an interpreter reads when it starts or a library when it loads, or a
    module with the name of a loaded one. Only a new interpreter treats these correctly."""
    for name in os.listdir(DATA):
        stem, dot, suffix = name.partition(".")
        if name == "matplotlibrc" or stem in preloaded and (
            dot + suffix in SUFFIXES
            or any(os.path.exists(f"{name}/__init__{suffix}") for suffix in SUFFIXES)
        ):
            return True
    return False


def has_own_settings():
    """True if an earlier run has left other settings for matplotlib than the image's, or styles."""
    folder = os.environ.get("MPLCONFIGDIR", "")
    settings = os.path.join(folder, "matplotlibrc")
    return (
        os.path.exists(settings)
        and read(settings) != read(MATPLOTLIBRC)
        or os.path.exists(os.path.join(folder, "stylelib"))
    )


def read(path):
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return os.read(file, size)
    finally:
        os.close(file)


# The end of a program. The interpreter calls the functions that are registered with atexit, the last first. So these
# are called after all that the libraries and the program have registered, and `leave` is the last: an interpreter would
# then free all modules, which takes 60 ms and is of no use. The steps between the two functions, which may run code of
# the program's, have no frame of this file below them.

# Objects to release: files, modules of the program, and at the end of the list, which is released first, the program.
leaving = []

# Collects garbage from before the release, and then from the release.
collect = functools.partial(gc.collect, 0)
collect_again = functools.partial(gc.collect, 1)


def leave():
    """Reports the end to the agent, and waits to be killed."""
    if not ended:
        return  # the program itself has called the registered functions
    for thing in get_objects():
        if isinstance(thing, _IOBase):
            try:
                if not thing.closed and thing.writable():
                    thing.flush()
            except Exception:
                pass
    for stream in sys.__stdout__, sys.__stderr__:
        try:
            stream.flush()
        except Exception:
            pass
    fflush(None)
    if getpid() != pid:
        _exit(code)
    if study is not None:
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        for some in itertools.batched(touched_pages(study), 1000):
            link.send(b"".join(RANGE.pack(*range) for range in some))
        _exit(0)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(pid, signal.SIGINT)
    spent = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN))
    )
    try:
        spent -= start.ru_utime + start.ru_stime
        link.send(struct.pack("=iQ", code, int(spent * 1e6)) + known.packed)
        # Freeing this process takes longer than most programs run. The agent kills it when the answer is on its way.
        link.recv(1)
    except OSError:
        pass  # the program has closed the link, and the agent waits for the end of the process
    _exit(code)


def prepare_to_leave():
    """Does what the interpreter does before it releases the modules."""
    global code
    if not ended:
        return
    if not flush_outputs():
        code = UNFLUSHED
    for name in "last_exc", "last_type", "last_value", "last_traceback":
        vars(sys).pop(name, None)
    for name in "stdin", "stdout", "stderr":
        leaving.insert(0, getattr(sys, name, None))
        setattr(sys, name, getattr(sys, f"__{name}__", None))
    sys.modules.pop("__main__", None)
    sys.modules.pop("__mp_main__", None)
    # The program's own modules are among the last.
    new = itertools.takewhile(lambda name: name not in preloaded, reversed(sys.modules))
    for name in list(new):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(DATA):
            leaving.insert(0, sys.modules.pop(name))
    # Modules that were loaded before are frozen and do not count. The oldest generation is collected only if objects of
    # the program are in it: a full collection also frees lists of unused objects, and so touches memory.
    oldest = max(
        (age + 1 for age, count in enumerate(collections()) if count > collections_at_start[age]),
        default=0,
    )
    for again, step in enumerate((collect, collect_again)):
        step.__setstate__((step.func, (min(oldest + again, 2),), {}, None))


def collections():
    """How often each generation has been collected; objects that survive that are in the next."""
    return [generation["collections"] for generation in get_stats()]


def flush_outputs():
    """Flushes the outputs. Returns False if one could not be flushed, for which there is an exit code."""
    clean = True
    for name in "stdout", "stderr":
        stream = getattr(sys, name, None)
        try:
            closed = stream is None or stream.closed
        except Exception:
            closed = False
        try:
            if not closed:
                stream.flush()
        except Exception as error:
            clean = False
            if name == "stdout":
                tell_unraisable(error, f"Exception ignored on flushing sys.{name}")
    return clean


def tell_unraisable(error, what):
    try:
        # Without the frame of this file.
        args = type(error), error, error.__traceback__.tb_next, what, None
        sys.unraisablehook(Unraisable(args))
    except Exception:
        pass


def unraisable_type():
    """Returns the type of the argument of `sys.unraisablehook`, which has no name."""

    class Fails:
        def __del__(self):
            raise RuntimeError

    caught = []
    hook, sys.unraisablehook = sys.unraisablehook, caught.append
    Fails()
    sys.unraisablehook = hook
    return type(caught[0])


Unraisable = unraisable_type()

for step in leave, collect_again, leaving.clear, collect, prepare_to_leave:
    atexit.register(step)

# An end by the signal, as a negative exit code: an interrupted interpreter ends like that.
INTERRUPTED = -signal.SIGINT

# The exit code of a program whose output could not be written, whatever it was before.
UNFLUSHED = 120


def code_of(left):
    """Returns the exit code that the interpreter makes of a SystemExit."""
    try:
        value = left.code
    except BaseException:
        return 1
    if value is None:
        return 0
    if not issubclass(type(value), int):
        return 1
    return int(value) & 0xFF if -(2**63) <= value < 2**63 else 0xFF


def show(error):
    """Does what the interpreter does with an uncaught exception. Returns the exit code."""
    sys.last_exc = sys.last_value = error
    sys.last_type, sys.last_traceback = type(error), error.__traceback__
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        print("sys.excepthook is missing", file=sys.stderr)
        hook = sys.__excepthook__
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failed:
        if failed.__context__ is error:
            failed.__context__ = None
        failed.__traceback__ = failed.__traceback__.tb_next
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def re_exec():
    """Becomes a new interpreter."""
    link.send(b"\0")
    os.execv(sys.executable, sys.orig_argv)


def become_new_kernel(files):
    """Becomes a new interpreter that runs the cell whose files these are, and those after it."""
    stack = fcntl.fcntl(HIGH, fcntl.F_DUPFD, HIGH + 1)
    for file in (link.fileno(), *files):
        os.set_inheritable(file, True)
    os.environ["PYTHONPATH"] = PYTHON_PATH.partition(":")[2]
    numbers = map(str, (link.fileno(), stack, *files))
    path = own_modules[0].__file__
    os.execv(sys.executable, [sys.executable, "-P", "-s", path, SCRIPT, DATA, PYTHON_PATH, *numbers])


own_environment = {name: os.environ.get(name) for name in ENVIRONMENT} | {"PYTHONPATH": PYTHON_PATH}
os.environ.update(ENVIRONMENT)
if settings := own_environment["MATPLOTLIBRC"]:
    os.environ["MATPLOTLIBRC"] = settings  # set by the image
preloaded = set()
code = 0
ended = False
pid = None

files, ranges, study, awaited, kernel = serve()
pid = getpid()
link = prepare(files, study, awaited, kernel)
stale = has_own_settings()
if kernel:
    own, shells = own_modules
    touch_pages(ranges, lambda: is_readable(link))
    is_stale = lambda: stale or must_re_exec()
    own = own.Kernel(link, SCRIPT, DATA, facts, shells, is_stale, become_new_kernel)
    own.wait()
    own.serve()
collections_at_start = collections()
touch_pages(ranges, lambda: is_readable(link))
wait(link)
start = getrusage(RUSAGE_SELF)
if study is None:
    text = read(SCRIPT)
    if stale or must_re_exec():
        re_exec()
else:
    text = "".join(EXERCISES[name] for name in PREPARED_FOR if not name or name in sys.modules)
    text = text.encode()

try:
    try:
        try:
            program, last = facts.compiled(text, SCRIPT)
        except SyntaxError:
            last = None
            program, left_out = facts.adapted(text, SCRIPT)
            known.left_out(left_out)
            if program is None:
                raise
    except SyntaxError as error:
        if not error.lineno:
            re_exec()  # an error in the encoding, which the interpreter reports differently for a file
        error.__traceback__ = None
        code = show(error)
    except BaseException as error:
        error.__traceback__ = None
        code = show(error)
    else:
        main = leaving[-1]
        facts.offer_display(text)
        context = contextvars.Context()
        hook = sys.displayhook
        try:
            context.run(facts.runner_of(program), program, vars(main))
            if last is not None:
                # The frame of the program itself releases a value that is dropped, which may matter to the program.
                hook, sys.displayhook = sys.displayhook, known.dropped
                context.run(exec, last, vars(main))
        except SystemExit:
            raise
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next
            code = show(error)
            known.failed(error)
        finally:
            if last is not None:
                sys.displayhook = hook
            # Only now, so that these objects are released with the program's module, and not with this one.
            vars(main).pop("__file__", None)
            vars(main).pop("__cached__", None)
            del main, program, last, context, hook
except SystemExit as left:
    code = code_of(left)
    known.ended()
    ended = True
    raise
known.ended()
ended = True
raise SystemExit(code if code >= 0 else 128 - code)
