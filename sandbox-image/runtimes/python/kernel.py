"""The kernel: the interpreter of a workspace, which runs one cell after another and keeps its state.

It is forked from the fork server as a spare that waits for its first cell. If there is no spare, or it cannot be used,
the kernel is a new interpreter on this file. The agent sends it messages over a socket:

    kernel --- its pid -------------------------> agent   the kernel waits
    agent ---- {"do": "cell", "n": N}, 2 or 3 files > kernel  run the program's file
    kernel --- exit code, processor time, .. ---> agent   done: now it may be stopped
    agent ---- {"do": "freeze"} and a socket ---> kernel  make a copy of the present state
    copy ----- its pid -------------------------> agent   on that socket: the copy is frozen
    kernel --- {"n": N, "frozen": ..} ----------> agent   whether it has been made
    agent ---- {"do": "take_over"} -------------> copy    become the kernel
    copy ----- {"n": N, "pid": its pid} --------> agent   the copy waits as the kernel
    agent ---- {"do": "inspect", "n": N} -------> kernel  list the variables
    kernel --- {"n": N, "variables": ..} -------> agent
    agent ---- {"do": "carry_out"} and a pipe --> kernel  save the variables (carry.py)
    kernel --- {"n": N, "carried": ..} ---------> agent
    agent ---- {"do": "carry_in"} and a pipe ---> kernel  restore variables that another kernel has saved
    kernel --- {"n": N, "carried": .., "fits": ..} > agent
    agent ---- {"do": "ping", "n": N} ----------> kernel  are you there?
    kernel --- {"n": N, "pong": its pid} -------> agent

A copy is a fork. The child is the copy and the parent continues, so that in ordinary use processes, threads and
sockets survive. A fork shares or changes some state: when the copy takes over, it restores the positions in open
files, the random states, and what an event loop waits for.
"""

import sys

if __name__ == "__main__":
    # A new interpreter: the user's folder is not on the path yet.
    import os

    SCRIPT, DATA, PYTHON_PATH = sys.argv[1:4]
    LINK, STACK, *FIRST = map(int, sys.argv[4:])

import ctypes
import faulthandler
import gc
import json
import os
import random
import re
import signal
import socket
import stat
import struct
import threading
import time
import types
import warnings

# Imported now, because cells may replace or delete any of these.
from builtins import *
from json import dumps as render, loads as parse
from os import _exit, close, dup, dup2, fstat, getpid, getppid, listdir, lseek, open as open_file, waitpid
from posix import fork
from signal import getsignal as handler_of, pthread_sigmask as set_mask, sigpending as pending_signals
from signal import sigtimedwait as take_signals
from socket import recv_fds as receive, socket as Socket
from struct import pack
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getpagesize, getrusage

# Maximum bytes of a value's text that are sent, and how many of those are its start.
MAX_RESULT, MAX_HEAD = 32 << 10, (32 << 10) * 3 // 5

# Maximum length of the agent's messages, in bytes.
MAX_MESSAGE = 4096

# Modules that know the processes which track what other processes share.
TRACKERS = "multiprocessing.resource_tracker", "joblib.externals.loky.backend.resource_tracker"

# The signal at which the kernel writes its stack.
ASKED = signal.SIGURG

# Signals that a program can handle, without those that its own faults raise.
CATCHABLE = signal.valid_signals() - {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS
}  # fmt: skip

# Maximum number of signals that are discarded before a cell.
MAX_DISCARDED = 4096

# Number of descriptors that the kernel reserves for itself.
RESERVED = 8

PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_POPULATE_WRITE = 23

PAGE = getpagesize()

# Maximum number of pages that a kernel copies ahead after it has been copied itself, which is what a copy costs at
# least, the longest stretch of them, and the number of pages of which one is left out.
MAX_HOT, MAX_STRETCH, DOUBTED = 2048, 256, 16

# The file that says which pages a process has. gVisor has no such file.
PAGES = "/proc/self/pagemap"

# The buffer for the states of pages, eight bytes each. Always the same memory, because it counts as written by a cell.
STATES = memoryview(bytearray(64 << 10))

# Pages in a row that are in memory, are no file's, and are not shared (Linux, Documentation/admin-guide/mm/pagemap).
OWN_PAGES = re.compile(rb"[\x81\x83]+")


def load(name, folder):
    """Loads a module of the runtime's own from a file; it is not in sys.modules."""
    module = types.ModuleType(name)
    module.__file__ = os.path.join(folder, name + ".py")
    with open(module.__file__) as file:
        exec(compile(file.read(), module.__file__, "exec"), vars(module))
    return module


class Kernel:
    """The shell, and its end of the socket to the agent."""

    def __init__(self, link, script, data, facts, shells, is_stale=None, re_exec=None):
        self.link = link
        self.script = script
        self.facts, self.shells = facts, shells
        self.data = data
        # Functions: whether a new interpreter has to run the first cell, and how it is started.
        self.is_stale = is_stale
        self.re_exec = re_exec
        main = types.ModuleType("__main__")
        main.__spec__ = None
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:
            sys.modules["__mp_main__"] = main
        self.shell = shells.make(main, data)
        self.shell.warm_up()
        # No object that exists now is garbage. A collection would touch all objects, and so cause a copy of each page.
        gc.collect()
        gc.freeze()
        self.hot = HotPages()
        # Until the first copy, all pages that it has ever written are its own.
        self.has_copies = False
        if os.path.exists(PAGES):
            self.study()
        self.pid = getpid()
        self.null = open_file(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.outputs = sys.stdout, sys.stderr
        self.stdin = sys.stdin
        self.had_input = True
        self.reserved = []

    def study(self):
        """Learns which pages a cell writes, beside a copy as there will be."""
        child = fork()
        if child == 0:
            signal.pause()
        try:
            self.shell.warm_up()
            self.hot.learn()
        finally:
            os.kill(child, signal.SIGKILL)
            waitpid(child, 0)

    def wait(self):
        """Tells the agent that this process waits."""
        self.link.send(pack("=i", self.pid))

    def serve(self):
        """Does what the agent asks until the agent ends. Never returns. Signals wait for the next cell."""
        self.mask = set_mask(signal.SIG_BLOCK, ())
        block_signals()
        self.reserve()
        while True:
            self.release()
            message, files, _, _ = receive(self.link, MAX_MESSAGE, 3)
            if not message:
                _exit(0)
            request = parse(message)
            do = request.pop("do")
            try:
                getattr(self, do)(*files, **request)
            except BaseException:
                if do in ("cell", "take_over"):
                    # The state of the variables is unknown.
                    _exit(70)
            self.reserve()

    def reserve(self):
        """Reserves some descriptors for the kernel: a cell may use up all that there are."""
        try:
            while len(self.reserved) < RESERVED:
                self.reserved.append(dup(self.null))
        except OSError:
            pass

    def release(self):
        while self.reserved:
            close(self.reserved.pop())

    def cell(self, *files, n=0):
        if self.is_stale is not None:
            os.setsid()  # as programs, when they start
            if self.is_stale():
                self.re_exec(files)
            self.is_stale = None
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        self.open_files(files)
        forget_trackers()
        start = usage()
        text = read(self.script).decode(errors="replace")
        self.reserve()
        known = self.facts.Facts()
        discard_signals()
        try:
            set_mask(signal.SIG_SETMASK, self.mask)
        except BaseException as error:
            # From a handler for a signal that has waited. The cell still runs: it may be there to stop such signals.
            complain(f"{type(error).__name__}: {error}")
        try:
            outcome = self.shell.run(text)
        except BaseException as error:
            complain(f"{type(error).__name__}: {error}")
            outcome = self.shell.failed(error)
        block_signals()
        code = self.end_cell(outcome, known)
        spent = int((usage() - start) * 1e6)
        if getpid() != self.pid:
            _exit(code)
        head, result = {"facts": known.known if known.packed else {}}, b""
        if isinstance(outcome.text, str):
            whole = str.encode(outcome.text, errors="backslashreplace")
            head["captured"], result = cut(whole)
        self.close_files()
        head = render(head).encode()
        self.link.send(pack("=iQI", code, spent, len(head)) + head + result)

    def open_files(self, files):
        """Connects the standard files to those of a cell."""
        for number, file in zip((1, 2, 0), (*files, self.null)[:3]):
            dup2(file, number)
        for file in files:
            close(file)
        for name, number in ("stdout", 1), ("stderr", 2):
            if getattr(getattr(sys, name, None), "closed", False) is True:
                errors = "backslashreplace" if number == 2 else "strict"
                stream = open(number, "w", encoding="utf-8", errors=errors, closefd=False)
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
        # Input that is left in a buffer belongs to the last cell.
        has_input = len(files) > 2
        if sys.stdin is self.stdin and (has_input or self.had_input or self.stdin.closed):
            self.stdin = sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
        self.had_input = has_input

    def close_files(self):
        """Disconnects the standard files: nothing reads what a thread writes from now on."""
        for number in range(3):
            dup2(self.null, number)

    def end_cell(self, outcome, known):
        """Does what follows the last line of a cell: figures, facts, outputs. Returns the exit code."""
        code = 0
        if isinstance(outcome.error, SystemExit):
            code = self.code_of(outcome.error)
        elif outcome.error is not None:
            code = 1
            known.failed(outcome.error)
        if getpid() == self.pid:
            try:
                if "matplotlib._pylab_helpers" in sys.modules and (figures := sys.modules.get("sandbox_figures")):
                    figures.show()
            except BaseException as error:
                complain(f"{type(error).__name__}: {error}")
            known.ended()
        for stream in (sys.stdout, sys.stderr, *self.outputs):
            try:
                stream.flush()
            except BaseException:
                pass
        libc.fflush(None)
        return code

    def code_of(self, left):
        """Returns the exit code that the interpreter makes of a SystemExit."""
        value = left.code
        if value is None:
            return 0
        if not isinstance(value, int):
            complain(value)
            return 1
        return int(value) & 0xFF

    def freeze(self, channel, oom_score, n=0):
        """Makes a copy, which stays as it is until it is asked to take over."""
        child, threads = -1, 0
        try:
            open_files, state, loops = positions(), random_state(), event_loops()
            threads = max(len(listdir("/proc/self/task")) - 1, 0)
            if self.has_copies:
                self.hot.learn()
            child = fork_orphan(threads)
        except Exception:
            pass  # without a copy
        if child:
            # In the kernel, which closes its end of the channel to the copy.
            close(channel)
            self.has_copies |= child > 0
            self.hot.take()
            self.tell({"n": n, "frozen": child > 0, "threads": threads})
            return
        restore_random(state)
        restore_event_loops(loops)
        channel = Socket(fileno=channel)
        self.link.close()
        self.link, self.pid = channel, getpid()
        os.setsid()
        set_oom_score(oom_score)
        self.wait()
        message = self.link.recv(MAX_MESSAGE)
        if not message:
            _exit(0)
        # The kernel has moved on in these files since the fork.
        for file, position in open_files:
            try:
                lseek(file, position, os.SEEK_SET)
            except OSError:
                pass
        self.shell.forked()
        self.tell({"n": parse(message).get("n", 0), "pid": self.pid})

    def ping(self, n=0):
        self.tell({"n": n, "pong": self.pid})

    def inspect(self, n=0):
        self.tell({"n": n, **self.shells.contents(self.shell)})

    def carry_out(self, pipe, n=0, **limits):
        carried = {}
        try:
            carried = self.carry().carry_out(self.shell, pipe, self.data, **limits)
        finally:
            block_signals()
            # The end of the pipe says that all has been written.
            close(pipe)
            self.tell({"n": n, "carried": carried})

    def carry_in(self, pipe, n=0, **limits):
        fits, carried = True, {}
        try:
            if self.is_stale is not None:
                fits = not self.is_stale()
                if fits:
                    os.setsid()
            if fits:
                self.is_stale = None
                libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
                carried = self.carry().carry_in(self.shell, pipe, self.data, **limits)
        finally:
            block_signals()
            close(pipe)
            self.tell({"n": n, "fits": fits, "carried": carried})

    def carry(self):
        return load("carry", os.path.dirname(self.facts.__file__))

    def tell(self, what):
        self.link.send(render(what, ensure_ascii=False).encode(errors="replace"))


def read(path):
    file = open_file(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, fstat(file).st_size)
    finally:
        close(file)


def cut(text):
    """Returns how much of a text is sent, and the text; if it is too long, its start and end."""
    total = len(text)
    if total <= MAX_RESULT:
        return {"head": total, "tail": 0, "total": total}, text
    tail = MAX_RESULT - MAX_HEAD
    return {"head": MAX_HEAD, "tail": tail, "total": total}, text[:MAX_HEAD] + text[-tail:]


def usage():
    """Processor time of this process and of all that it has waited for, in seconds."""
    used = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in used)


def forget_trackers():
    """Forgets the processes that multiprocessing and joblib start to track what theirs share: they have ended with the
    last cell. The next ones know nothing that was there before, and would complain of messages about that."""
    for name in TRACKERS:
        tracker = getattr(sys.modules.get(name), "_resource_tracker", None)
        if getattr(tracker, "_fd", None) is None:
            continue
        try:
            file, pid, tracker._fd, tracker._pid = tracker._fd, tracker._pid, None, None
            tracker._send = of_known(type(tracker)._send.__get__(tracker))
            close(file)
            waitpid(pid, os.WNOHANG)
        except Exception:
            pass  # it was a child of the process that this one is a copy of


def of_known(send):
    """Returns a function that only sends messages about things that have been registered here."""
    known = set()

    def send_if_known(command, name, kind):
        if command == "REGISTER":
            known.add((name, kind))
        if (name, kind) in known:
            send(command, name, kind)

    return send_if_known


def block_signals():
    """Makes signals wait. A handler may raise here, too, for a signal that has come before."""
    try:
        set_mask(signal.SIG_BLOCK, CATCHABLE)
    except BaseException:
        pass


def discard_signals():
    """Discards the signals that have waited: they are not meant for the next cell, which they would end, and after it
    each older copy of this process. Signals that user code handles are kept."""
    unhandled = signal.SIG_DFL, signal.default_int_handler, None
    try:
        for _ in range(MAX_DISCARDED):
            waiting = {number for number in pending_signals() & CATCHABLE if handler_of(number) in unhandled}
            if not waiting:
                break
            take_signals(waiting, 0)
    except BaseException:
        pass


def complain(what):
    """Prints to standard error, and ignores errors: a cell may have replaced or closed it."""
    try:
        print(what, file=sys.stderr)
    except BaseException:
        pass


def random_state():
    try:
        return random.getstate()
    except Exception:
        return None


def restore_random(state):
    """Restores the random state, which a fork sets anew."""
    if state is not None:
        random.setstate(state)


def event_loops():
    """Returns asyncio's policy with this thread's loop, which a fork forgets."""
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    return policy, getattr(policy, "_local", None)


def restore_event_loops(loops):
    policy, local = loops
    if local is not None:
        policy._local = local


def set_oom_score(score):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(score))
    except OSError:
        pass


def positions():
    """Returns the position of this process in each of its open files that has one."""
    found = []
    for name in listdir("/proc/self/fd"):
        try:
            if stat.S_ISREG(fstat(int(name)).st_mode):
                found.append((int(name), lseek(int(name), 0, os.SEEK_CUR)))
        except OSError:
            pass  # the folder itself, which is closed by now
    return found


class HotPages:
    """Memory that cells write again and again, if the system shows which pages were written. After a copy has been
    made, the first write to each page costs a cell a microsecond or more. There are hundreds of such pages, so the
    kernel copies them ahead, while no call waits. It leaves out some in turn, to see whether they are still written."""

    def __init__(self):
        self.pages = set()
        self.turn = 0

    def learn(self):
        """Remembers the pages that have been written since the last copy was made, or copied ahead."""
        own = own_pages()
        known = [page for page in own if page in self.pages]
        new = [page for page in own if page not in self.pages]
        self.pages = set((known + new)[:MAX_HOT])

    def take(self):
        """Copies the pages, except the few whose turn it is."""
        self.turn = (self.turn + 1) % DOUBTED
        pages = sorted(page for page in self.pages if page // PAGE % DOUBTED != self.turn)
        start = end = 0
        for page in [*pages, sys.maxsize]:
            if page != end:
                if end > start:
                    libc.madvise(start, end - start, MADV_POPULATE_WRITE)
                start = page
            end = page + PAGE


def own_pages():
    """Returns the addresses of pages that only this process has, because it has written there since its last copy was
    made; without long stretches, such as those of a large table."""
    found = []
    try:
        with open("/proc/self/maps") as lines, open(PAGES, "rb", buffering=0) as pages:
            for line in lines:
                addresses, access, _, _, _, *name = line.split(None, 5)
                if not access.startswith("rw-p") or name and name[0].startswith("[stack"):
                    continue
                start, end = (int(address, 16) for address in addresses.split("-"))
                pages.seek(start // PAGE * 8)
                while start < end and (read := pages.readinto(STATES[: (end - start) // PAGE * 8])):
                    # The byte of each page that tells whether it is in memory and whether it is shared.
                    for run in OWN_PAGES.finditer(bytes(STATES[7:read:8])):
                        if len(run[0]) <= MAX_STRETCH:
                            found.extend(range(start + run.start() * PAGE, start + run.end() * PAGE, PAGE))
                    start += read // 8 * PAGE
    except (OSError, ValueError):
        pass
    return found


def fork_orphan(threads):
    """Forks, and returns 0 in a new process whose parent is the agent, and 1 in this one; -1 if there is no new
    process. This process is never its parent, because user code could wait for it."""
    # The process that ends here is not a child of the user's, who may have asked to be notified of those.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        child = fork_quietly(threads)
        if child:
            _, status = waitpid(child, 0)
            signal.sigtimedwait({signal.SIGCHLD}, 0)
            return -1 if status else 1
        intermediate = getpid()
        try:
            if fork():
                _exit(0)
        except OSError:
            _exit(1)
        while getppid() == intermediate:
            time.sleep(0.0002)
        return 0
    except OSError:
        return -1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def fork_quietly(threads):
    """Forks without a warning. The agent reports where it matters that threads do not come along."""
    if not threads:
        return fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fork()


def start_cold():
    """Runs the kernel in a new interpreter."""
    # Loaded before the user's folder is on the path, as the shell's own modules are.
    folder = os.path.dirname(os.path.abspath(__file__))
    facts, shells = load("facts", folder), load("shell", folder)
    try:
        import IPython.core.interactiveshell
        import stack_data  # for the first traceback
    except ImportError:
        pass
    if STACK >= 0:
        faulthandler.register(ASKED, STACK, all_threads=False)
        os.set_inheritable(STACK, False)
    os.environ["PYTHONPATH"] = PYTHON_PATH
    sys.path.insert(0, DATA)
    sys.argv[:] = [SCRIPT]
    sys.orig_argv[:] = [sys.orig_argv[0], "-P", "-s", SCRIPT]
    link = socket.socket(fileno=LINK)
    link.set_inheritable(False)
    for file in FIRST:
        os.set_inheritable(file, False)
    kernel = Kernel(link, SCRIPT, DATA, facts, shells)
    if FIRST:
        # The first cell was requested before the process became a new interpreter.
        kernel.mask = set_mask(signal.SIG_BLOCK, ())
        try:
            kernel.cell(*FIRST)
        except BaseException:
            _exit(70)
    else:
        kernel.wait()
    kernel.serve()


if __name__ == "__main__":
    start_cold()
