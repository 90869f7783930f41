"""Checks its own sandbox of the embedded engine from within, and tries to break out of it without causing damage.

Reads the expected limits from standard input and prints one JSON line for each check:
{"check": ..., "result": "ok" | "FAIL" | "n/a", "detail": ...}. (The probe of containers is runtimes/python/probe.py.)
"""

import errno
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

want = json.load(sys.stdin)

# The guest's own folders, none of which is one of the host, and that of its datasets.
ROOT = {"mnt", "tmp", "usr", "lib", "home", "etc", "dev", "data"}


def told(check, ok, detail):
    result = {True: "ok", False: "FAIL", None: "n/a"}[ok]
    print(json.dumps({"check": check, "result": result, "detail": str(detail)}), flush=True)


def attempt(act):
    """Returns the name of the errno or of the error, or None if the act was allowed."""
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return None


def host_files():
    there = sorted(os.listdir("/"))
    strange = set(there) - ROOT
    told("root of its own", not strange, ", ".join(sorted(strange) or there))
    paths = ("/etc/passwd", "/etc/hostname", "/proc/self/status", "/proc/1/environ", "/sys/kernel", "/root", "/dev/mem",
             "/var/run/docker.sock", "/run/containerd/containerd.sock")  # fmt: skip
    found = [path for path in paths if os.path.exists(path)]
    told("no files of the host", not found, found or "%d looked for" % len(paths))
    up = "/".join([".."] * 40)
    ways = [f"/mnt/data/{up}/etc/passwd", f"{up}/proc/self/environ", "/mnt/data//..//../etc/shadow"]
    for number, target in enumerate(("/etc/passwd", f"{up}/etc/passwd", "/proc/self/root/etc/passwd")):
        link = f"/mnt/data/probe-link-{number}"
        if attempt(lambda link=link, target=target: os.symlink(target, link)) is None:
            ways.append(link)
    opened = [way for way in ways if attempt(lambda way=way: open(way, "rb").close()) is None]
    told("no way out by links and ..", not opened, opened or "%d tried" % len(ways))
    for way in ways:
        if os.path.islink(way):
            os.remove(way)
    places = ("/usr", "/usr/local/lib", os.path.dirname(os.__file__))
    written = []
    for place in places:
        path = os.path.join(place, "probe")
        if attempt(lambda path=path: open(path, "w").close()) is None:
            written.append(place)
            os.remove(path)
    told("read-only libraries", not written, written or "nothing can be written there")


def network():
    made = []
    for family, kind in (("AF_INET", "SOCK_STREAM"), ("AF_INET", "SOCK_DGRAM"), ("AF_INET6", "SOCK_STREAM"),
                         ("AF_UNIX", "SOCK_STREAM")):  # fmt: skip
        numbers = [getattr(socket, name, 1) for name in (family, kind)]
        if attempt(lambda numbers=numbers: socket.socket(*numbers).close()) is None:
            made.append(f"{family} {kind}")
    told("no sockets", not made, made or "none can be made")
    out = attempt(lambda: socket.create_connection(("192.0.2.1", 80), 2).close())
    told("no connection out", out is not None, out)
    named = attempt(lambda: socket.getaddrinfo("example.org", 80))
    told("no name server", named is not None, named)


def environment():
    leaked = [name for name in os.environ if name.startswith(("SANDBOX_", "DOCKER_", "SSH_", "AWS_", "PATH"))]
    told("no host environment", not leaked, leaked or "%d variables" % len(os.environ))
    # Descriptors 0 to 2 are the standard streams. The others are folders, which cannot be written to, and the report.
    inherited = [number for number in range(3, 64) if attempt(lambda n=number: os.write(n, b"")) is None]
    told("no inherited files", len(inherited) <= 1, inherited[1:] or "one, by which the result is told")


def processes():
    ways = {
        "fork": lambda: os.fork(),
        "system": lambda: os.system("true") or None,
        "subprocess": lambda: subprocess.run(["/bin/true"]),
        "execv": lambda: os.execv("/bin/true", ["true"]),
        "thread": lambda: threading.Thread(target=print).start(),
        "kill": lambda: os.kill(1, 9),
    }
    worked = [name for name, act in ways.items() if attempt(act) is None]
    told("no processes or threads", not worked, worked or "%d ways tried" % len(ways))
    try:
        ctypes = importlib.import_module("ctypes")
        loaded = attempt(lambda: ctypes.CDLL("libc.so.6")) is None
    except ImportError:
        loaded = False
    told("no native code", not loaded, "loaded" if loaded else "no library can be loaded")


def open_files():
    held = []
    code = attempt(lambda: [held.append(open("/tmp/probe-open", "w")) for _ in range(4096)])
    told("open files", code == "EMFILE", "%s after %d" % (code, len(held)))
    for file in held:
        file.close()
    os.remove("/tmp/probe-open")


def fill(folder, limit, start):
    """Fills a folder. The first bytes, up to `start`, are a hole, which counts in the quota but takes no time."""
    path = os.path.join(folder, "probe-fill")
    written, code = 0, None
    with open(path, "wb", buffering=0) as file:
        file.truncate(start)
        file.seek(start)
        block = bytes(1 << 20)
        while written <= 2 * limit and code is None:
            code = attempt(lambda: file.write(block))
            written = os.fstat(file.fileno()).st_size
    os.remove(path)
    return written, code


def quotas():
    hole = max(0, want["data"] - 8_000_000) if want["storage"] == "disk" else 0
    for folder, limit, start in (("/mnt/data", want["data"], hole), ("/tmp", want["scratch"], 0)):
        written, code = fill(folder, limit, start)
        told("size of " + folder, code in ("ENOSPC", "EFBIG", "EDQUOT") and written <= limit + (1 << 20),
             "%s after %d MB" % (code, written // 1_000_000))  # fmt: skip
        inside = os.path.join(folder, "probe-many")
        os.mkdir(inside)
        made, code = 0, None
        while made <= want["files"] + 4_000 and code is None:
            code = attempt(lambda: open(os.path.join(inside, str(made)), "w").close())
            made += code is None
        shutil.rmtree(inside)
        told("files in " + folder, code in ("ENOSPC", "EDQUOT") and made <= want["files"], "%s after %d" % (code, made))


def memory():
    held, block = [], 8_000_000
    refused = attempt(lambda: [held.append(bytearray(block)) for _ in range(1 + 2 * want["memory"] // block)])
    size = len(held) * block
    del held[:]
    # The limit is in addition to the initial memory, in which some space is free.
    told("memory runs out", refused == "MemoryError" and size < want["memory"] + (64 << 20),
         "%s after %d MB" % (refused, size // 1_000_000))  # fmt: skip


def unseen():
    for check in ("rights of its process", "instructions and time"):
        told(check, None, "the engine's, outside of what a guest can see")


for check in host_files, network, environment, processes, open_files, quotas, memory, unseen:
    try:
        check()
    except Exception as error:  # A check that could not be made has failed.
        told(check.__name__, False, "%s: %s" % (type(error).__name__, error))
