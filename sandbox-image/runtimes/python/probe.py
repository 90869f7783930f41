"""Checks its own sandbox from within and tries to break out of it, gently.

Reads the expected limits from standard input and prints one JSON line for each check:
{"check": ..., "result": "ok" | "FAIL" | "n/a", "detail": ...}. Uses the standard library alone, so that it runs in any
image.
"""

import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys

want = json.load(sys.stdin)
# A pod has no field for some settings of a container: those checks report the replacement.
pod = want.get("pod", False)
libc = ctypes.CDLL(None, use_errno=True)


def told(check, ok, detail):
    result = {True: "ok", False: "FAIL", None: "n/a"}[ok]
    print(json.dumps({"check": check, "result": result, "detail": str(detail)}), flush=True)


def read(path):
    with open(path) as file:
        return file.read()


def attempt(act):
    """Returns the name of the errno, or None if the act was allowed."""
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return None


def identity():
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines())
    ids = (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups())
    first, last = want["uids"]
    own = first <= ids[0] <= last and ids == (ids[0], ids[0], 1000, 1000, [1000])
    told("user", own, "uid %d, gid %d" % (ids[0], ids[2]))
    sets = {name: int(status[name], 16) for name in status if name.startswith("Cap")}
    told("capabilities", not any(sets.values()), "none" if not any(sets.values()) else sets)
    flag = libc.prctl(39, 0, 0, 0, 0)  # PR_GET_NO_NEW_PRIVS; not every kernel's status has it
    told("no new privileges", flag == 1, flag)
    if want["gvisor"]:
        told("seccomp filter", None, "gVisor filters on its own side and does not show it")
    else:
        told("seccomp filter", status["Seccomp"] == "2", "mode " + status["Seccomp"])


# Numbers of x86-64 and the generic ones; calls without a number here are not tried.
CALLS = {
    "x86_64": {"ptrace": 101, "mount": 165, "unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321,
               "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323,
               "process_vm_readv": 310, "pidfd_getfd": 438, "init_module": 175, "kexec_load": 246,
               "io_setup": 206, "sync": 162, "syncfs": 306},
    "aarch64": {"ptrace": 117, "mount": 40, "unshare": 97, "setns": 268, "keyctl": 219, "bpf": 280,
                "perf_event_open": 241, "io_uring_setup": 425, "userfaultfd": 282,
                "process_vm_readv": 270, "pidfd_getfd": 438, "init_module": 105, "kexec_load": 104,
                "io_setup": 0, "sync": 81, "syncfs": 267},
}  # fmt: skip


def system_calls():
    allowed = []
    numbers = CALLS.get(os.uname().machine, {})
    for name, number in numbers.items():
        # unshare(CLONE_NEWUSER) and ptrace(PTRACE_SEIZE, 1); the rest fail on their first argument.
        first = {"unshare": 0x10000000, "ptrace": 0x4206}.get(name, -1)
        second = 1 if name == "ptrace" else 0
        ctypes.set_errno(0)
        refused = libc.syscall(number, first, second, 0, 0, 0, 0) == -1
        if not (refused and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EACCES)):
            allowed.append(name)
    if want["gvisor"]:
        # gVisor's own kernel answers these; none of them reaches the host's.
        told("system calls", None, "answered by gVisor's own kernel, not the host's")
    elif pod:
        # Pods have the runtime's own filter. No such filter allows calls that give access to other processes or the
        # kernel.
        grave = {"mount", "setns", "bpf", "init_module", "kexec_load", "process_vm_readv", "pidfd_getfd"}
        through = grave.intersection(allowed)
        rest = ", ".join(name for name in allowed if name not in grave) or "none"
        told("system calls", numbers and not through, ", ".join(through) or "lets through of the rest: " + rest)
    else:
        told("system calls", numbers and not allowed, allowed or "%d refused" % len(numbers))
    raw, stream, datagram = socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_DGRAM
    sockets = {"netlink": (16, raw), "packet": (17, raw), "vsock": (40, stream), "alg": (38, raw),
               "raw": (socket.AF_INET, raw, 1), "ping": (socket.AF_INET, datagram, 1),
               "UDP-Lite": (socket.AF_INET, datagram, 136), "SCTP": (socket.AF_INET, stream, 132),
               "MPTCP": (socket.AF_INET, stream, 262)}  # fmt: skip
    made = [name for name, kind in sockets.items() if attempt(lambda k=kind: socket.socket(*k).close()) is None]
    if want["gvisor"]:
        told("kinds of sockets", None, "gVisor's own network, of which there is only lo")
    elif pod:
        told("kinds of sockets", None, "the runtime's own filter lets through: " + (", ".join(made) or "none"))
    else:
        told("kinds of sockets", not made, made or "%d refused" % len(sockets))


def socket_memory():
    if want["gvisor"]:
        return told("memory of sockets", None, "gVisor's own network; its memory is the sandbox's on the host")
    if pod and not os.path.exists("/sys/fs/cgroup/memory.current"):
        return told("memory of sockets", None, "the node's cgroup version 1 does not count it")
    families = (socket.AF_INET, socket.AF_INET6)
    codes = [attempt(lambda f=f, t=t: socket.socket(f, t).close())
             for f in families for t in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]  # fmt: skip
    if not (pod or want["internet_sockets"]):
        refused = set(codes) == {"EAFNOSUPPORT"}
        return told("memory of sockets", refused, "no TCP, no UDP" if refused else codes)

    def counted():
        return int(read("/sys/fs/cgroup/memory.current"))

    before, held = counted(), []
    for _ in range(64):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        held.append(receiver)
        for _ in range(4):
            receiver.sendto(bytes(32_768), receiver.getsockname())
    grown = counted() - before
    for receiver in held:
        receiver.close()
    told("memory of sockets", grown > 4_000_000, "%d of 8 MB are counted" % (grown // 1_000_000))


def pressure():
    paths = ["/proc/pressure/" + name for name in ("cpu", "io", "memory", "irq")]
    paths += ["/sys/fs/cgroup/%s.pressure" % name for name in ("cpu", "io", "memory", "irq", "cgroup")]
    opened = [path for path in paths if attempt(lambda path=path: open(path, "r+b", 0).close()) is None]
    if pod and opened:
        return told("no pressure triggers", None, "the runtime leaves these open: " + ", ".join(opened))
    told("no pressure triggers", not opened, opened or "nowhere to set them")


def files():
    places = ("/", "/etc", "/usr", "/var/tmp", "/opt", "/run", "/home", "/root", "/dev", "/sys", "/proc")
    writable = []
    for place in places:
        path = os.path.join(place, "probe-%d" % os.getpid())
        if attempt(lambda path=path: open(path, "w").close()) is None:
            writable.append(place)
            os.remove(path)
    for path in ("/dev/termination-log", "/root/termination-log", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"):
        if attempt(lambda path=path: open(path, "r+b").close()) is None:
            writable.append(path)
    told("read-only root", not writable, writable or "nothing can be written outside the data areas")
    rights = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys")]
        for name in names:
            path = os.path.join(folder, name)
            try:
                if not os.path.islink(path) and os.lstat(path).st_mode & 0o6000:
                    rights.append(path)
            except OSError:
                pass
    told("no setuid files", not rights, rights or "none")
    with open("/tmp/probe-program", "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod("/tmp/probe-program", 0o755)
    pid = os.fork()
    if pid == 0:
        try:
            os.execv("/tmp/probe-program", ["probe"])
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if pod and code == 0:
        told("no programs in /tmp", None, "it ran: a pod's memory volumes cannot be mounted noexec")
    else:
        told("no programs in /tmp", code == errno.EACCES, errno.errorcode.get(code, "it ran"))
    os.remove("/tmp/probe-program")


def network():
    lines = read("/proc/net/dev").splitlines()[2:]
    devices = sorted(line.split(":")[0].strip() for line in lines)
    told("only lo", None if pod and devices != ["lo"] else devices == ["lo"], ", ".join(devices))
    routes = read("/proc/net/route").splitlines()[1:]
    if os.path.exists("/proc/net/ipv6_route"):
        routes += [r for r in read("/proc/net/ipv6_route").splitlines() if not r.endswith(" lo")]
    if pod and routes:
        told("no route", None, "%d routes: what goes over them, the network policy has to stop" % len(routes))
    else:
        told("no route", not routes, routes or "none")
    codes = []
    for address in ("192.0.2.1", "10.0.0.1", "172.17.0.1", "169.254.169.254"):
        codes.append(attempt(lambda a=address: socket.create_connection((a, 80), 2).close()))
    told("no connection out", None not in codes, ", ".join(sorted({str(c) for c in codes})))
    try:
        socket.getaddrinfo("example.org", 80)
        told("no name server", False, "a name was resolved")
    except socket.gaierror as error:
        told("no name server", True, error.strerror)
    sockets = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
               "/run/podman/podman.sock")  # fmt: skip
    there = [path for path in sockets if os.path.exists(path)]
    told("no engine socket", not there, there or "none")


def environment():
    known = {"PATH", "HOME", "HOSTNAME", "LANG", "PWD", "SHLVL", "_", "LC_CTYPE"}
    library = ("PYTHON", "MPL", "OMP_", "OPENBLAS_", "PIP_", "JE_ARROW_", "MATPLOTLIB")
    strange = [v for v in os.environ if v not in known and not v.startswith(library)]
    # A custom image may set more variables; those of the server must not be here.
    leaked = [v for v in strange if v.startswith(("SANDBOX_", "DOCKER_", "SSH_", "AWS_"))]
    told("no host environment", not leaked, leaked or "%d variables" % len(os.environ))
    inherited = [fd for fd in range(3, 256) if attempt(lambda fd=fd: os.fstat(fd)) is None]
    # A program of the fork server has two descriptors of its own: the file for its stack, and its link to the agent.
    strange = [] if inherited == [60, 61] else inherited
    told("no inherited files", not strange, strange or "none")


def agent():
    paths = ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/maps")
    opened = [path for path in paths if attempt(lambda path=path: open(path, "rb").close()) is None]
    if want["gvisor"]:
        told("agent not readable", None, "gVisor shows it to its own user: code can forge its own answers")
    else:
        told("agent not readable", not opened, opened or "refused")
    if want["gvisor"]:
        told("agent not killable", None, "gVisor does not protect PID 1: code can end its own sandbox")
    else:
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
            attempt(lambda number=number: os.kill(1, number))
        told("agent not killable", os.path.isdir("/proc/1"), "signals from inside do nothing")
    ctypes.set_errno(0)
    traced = libc.ptrace(0x4206, 1, 0, 0) == 0  # PTRACE_SEIZE
    told("agent not traceable", not traced, errno.errorcode.get(ctypes.get_errno(), "attached"))
    if want["gvisor"]:
        told("agent's limits", None, "gVisor applies no filter of ours: code can end its own sandbox")
    elif pod:
        # A test would end the sandbox.
        told("agent's limits", None, "the runtime's filter does not protect them: code can end its own sandbox")
    else:
        limited = not libc.prlimit(1, 7, struct.pack("QQ", 3, 3), None)  # RLIMIT_NOFILE
        told("agent's limits", not limited, "changed" if limited else "refused")


def fill(folder, limit):
    path = os.path.join(folder, "probe-fill")
    written, code = 0, None
    with open(path, "wb", buffering=0) as file:
        block = bytes(1 << 20)
        while written <= 2 * limit and code is None:
            code = attempt(lambda: file.write(block))
            written = os.fstat(file.fileno()).st_size
    os.remove(path)
    return written, code


def quotas():
    disk = want["storage"] == "disk"
    for folder, limit in (("/mnt/data", want["data"]), ("/tmp", want["scratch"]), ("/dev/shm", want["scratch"])):
        if disk and folder == "/mnt/data":
            told("size of " + folder, None, "the agent ends a run that is about to exceed %d MB" % (limit // 1_000_000))
            continue
        written, code = fill(folder, limit)
        ok = code in ("ENOSPC", "EFBIG") and written <= limit + (1 << 20)
        told("size of " + folder, ok, "%s after %d MB" % (code, written // 1_000_000))
    for folder in ("/mnt/data", "/tmp"):
        if pod or want.get("agent_counts_files") or disk and folder == "/mnt/data":
            told("files in " + folder, None, "the agent ends a run that leaves more than %d" % want["files"])
            continue
        inside = os.path.join(folder, "probe-many")
        os.mkdir(inside)
        made, code = 0, None
        while made <= want["files"] + 4_000 and code is None:
            code = attempt(lambda: open(os.path.join(inside, str(made)), "w").close())
            made += code is None
        shutil.rmtree(inside)
        if want["gvisor"] and code is None:
            told("files in " + folder, None, "gVisor's tmpfs does not count inodes")
        else:
            told("files in " + folder, code == "ENOSPC" and made < want["files"], "%s after %d" % (code, made))


def control_groups():
    def first(*paths):
        for path in paths:
            try:
                return read(path).split()
            except OSError:
                pass
        return None

    memory = first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    swap = first("/sys/fs/cgroup/memory.swap.max")
    both = first("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
    pids = first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
    cpu = first("/sys/fs/cgroup/cpu.max")
    if cpu is None:
        quota = first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = first("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        cpu = quota + period if quota and period else None
    if want["gvisor"]:
        for name in ("memory limit", "no swap", "process limit", "processor limit"):
            told(name, None, "set on the host; gVisor does not show it inside")
        return
    page = os.sysconf("SC_PAGE_SIZE")
    as_set = memory and abs(int(memory[0]) - want["memory"]) < page
    told("memory limit", bool(as_set), memory and "%d MB" % (int(memory[0]) // 1_000_000))
    if swap is None and both is None:
        told("no swap", None, "the kernel does not count swap")
    else:
        told("no swap", swap == ["0"] if swap else both == memory, "limit %s" % (swap or both)[0])
    if pod:
        told("process limit", None, "a setting of the nodes: podPidsLimit of the kubelet")
    else:
        told("process limit", pids == [str(want["pids"])], pids and pids[0])
    share = cpu and cpu[0] != "max" and int(cpu[0]) / int(cpu[1])
    limit = min(want["cpus"], want["host_cpus"])
    told("processor limit", bool(share) and abs(share - limit) < 0.01, share)


def rlimits():
    wanted = {"RLIMIT_NOFILE": 1024, "RLIMIT_CORE": 0, "RLIMIT_MEMLOCK": 0}
    found = {name: resource.getrlimit(getattr(resource, name)) for name in wanted}
    wrong = {name: found[name] for name in wanted if found[name] != (wanted[name],) * 2}
    told("open files, no core dumps", not wrong, wrong or "1024, 0")


def processes_hit():
    if want["gvisor"]:
        return told("processes run out", None, "gVisor's own threads count: it ends the whole sandbox")
    held = []
    code = None
    while len(held) <= want["pids"] and code is None:
        try:
            pid = os.fork()
        except OSError as error:
            code = errno.errorcode[error.errno]
            break
        if pid == 0:
            signal.pause()
            os._exit(0)
        held.append(pid)
    for pid in held:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if pod and code is None:
        return told("processes run out", None, "not after %d: set podPidsLimit on the nodes" % len(held))
    told("processes run out", code == "EAGAIN" and len(held) < want["pids"], "%s after %d" % (code, len(held)))


def memory_hit():
    if want["gvisor"]:
        return told("memory runs out", None, "under gVisor it ends the whole sandbox")
    if pod and attempt(lambda: open("/sys/fs/cgroup/memory.oom.group").close()) is None:
        if read("/sys/fs/cgroup/memory.oom.group").strip() == "1":
            return told("memory runs out", None, "it ends the whole sandbox: the kubelet has no singleProcessOOMKill")
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 12)) * 256)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told("memory runs out", code == -signal.SIGKILL, "only the process that took it is killed")


for check in (identity, system_calls, socket_memory, pressure, files, network, environment, agent,
              control_groups, rlimits, quotas, processes_hit, memory_hit):  # fmt: skip
    try:
        check()
    except Exception as error:  # A check that cannot be made counts as failed.
        told(check.__name__, False, "%s: %s" % (type(error).__name__, error))
