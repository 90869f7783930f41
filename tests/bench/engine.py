"""The docker client: containers with exactly the limits of ours, and their memory.

The limits are read from a running container of our server, and not written down again here, so that all contestants
have the same ones; `Limits` turns them into options of `docker run`. That client cannot express two of them, masked
paths and a network that is not even set up; neither of them affects the speed of a running container.
"""

import hashlib
import json
import os
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from measure import Ran, Wrong, right

PATIENCE_S = 120
LABEL = "llm-sandbox.bench"

# As our agent does when a session starts: without matplotlib's list of fonts in the home folder every process would
# make that list again, which takes seconds.
PREPARE_HOME = "cp -r /opt/sandbox/home /tmp/home"
STAY = f"{PREPARE_HOME} && exec sleep infinity"


def docker(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Runs a command that must succeed; returns its output."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(["docker", *arguments], capture_output=True, timeout=PATIENCE_S, **given)
    if done.returncode:
        raise Wrong("docker", arguments[0], done.stderr.decode(errors="replace")[-500:])
    return bytes(done.stdout)


def containers(*filters: str) -> list[str]:
    """Full ids of the containers, in any state, that match all these filters."""
    wanted = [part for one in filters for part in ("--filter", one)]
    return docker("ps", "--all", "--quiet", "--no-trunc", *wanted).decode().split()


def remove_all(run: str) -> None:
    """Removes every container with the label of this run of the benchmark."""
    left = containers(f"label={LABEL}={run}")
    if left:
        docker("rm", "--force", *left)


@dataclass(frozen=True)
class Limits:
    """The limits of a container of ours, from `docker inspect`."""

    image: str
    host: dict[str, Any]
    config: dict[str, Any]
    seccomp: str

    @classmethod
    def of(cls, container: str) -> "Limits":
        found = json.loads(docker("inspect", container))[0]
        options = found["HostConfig"]["SecurityOpt"]
        seccomp = next(option.partition("=")[2] for option in options if option.startswith("seccomp="))
        return cls(found["Config"]["Image"], found["HostConfig"], found["Config"], seccomp)

    def options(self, folder: Path) -> list[str]:
        """Options of `docker run` for the same limits; it takes the profile as a file, written to this folder."""
        profile = folder / "seccomp.json"
        profile.write_text(self.seccomp)
        host = self.host
        options = [
            f"--user={self.config['User']}",
            f"--hostname={self.config['Hostname']}",
            "--network=none",
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges:true",
            f"--security-opt=seccomp={profile}",
            f"--memory={host['Memory']}",
            f"--memory-swap={host['MemorySwap']}",
            f"--cpus={host['NanoCpus'] / 1e9}",
            f"--cpu-shares={host['CpuShares']}",
            f"--pids-limit={host['PidsLimit']}",
            f"--shm-size={host['ShmSize']}",
            f"--oom-score-adj={host['OomScoreAdj']}",
            f"--ipc={host['IpcMode']}",
            f"--cgroupns={host['CgroupnsMode']}",
            f"--log-driver={host['LogConfig']['Type']}",
            "--stop-signal=SIGKILL",
        ]
        options += [f"--tmpfs={path}:{rest}" for path, rest in host["Tmpfs"].items()]
        options += [f"--ulimit={limit['Name']}={limit['Soft']}:{limit['Hard']}" for limit in host["Ulimits"]]
        return options + [f"--env={variable}" for variable in self.config["Env"]]

    def check_same(self, container: str) -> None:
        """Checks that a container made with these options has these limits."""
        other = Limits.of(container)
        names = "Memory MemorySwap NanoCpus CpuShares PidsLimit ShmSize OomScoreAdj ReadonlyRootfs Tmpfs CapDrop CapAdd"
        for name in names.split():
            right(self.host[name] == other.host[name], "limits differ", name, self.host[name], other.host[name])
        right(json.loads(self.seccomp) == json.loads(other.seccomp), "the seccomp profiles differ")
        right(self.config["User"] == other.config["User"], "the users differ")

    def sentence(self) -> str:
        host = self.host
        return (
            f"{host['Memory'] // 10**6} MB memory without swap, {host['NanoCpus'] / 1e9:g} CPU, {host['PidsLimit']} "
            f"processes, read-only root, /mnt/data and /tmp as tmpfs, no network, no capabilities, the server's "
            f"seccomp profile, user {self.config['User']}"
        )


class DockerExec:
    """`docker exec` into a container that keeps running."""

    key = "docker"

    def __init__(self, run: str, image: str, options: list[str]) -> None:
        labelled = [f"--label={LABEL}={run}", *options, "--entrypoint=sh", image, "-c", STAY]
        self.container = docker("run", "--detach", *labelled).decode().strip()
        # The home folder is complete when PID 1 is sleep.
        deadline = time.monotonic() + PATIENCE_S
        while b"sleep" not in docker("exec", self.container, "cat", "/proc/1/comm"):
            right(time.monotonic() < deadline, "the container does not get ready")
            time.sleep(0.05)

    def run(self, code: str) -> Ran:
        command = ["docker", "exec", self.container, "python3", "-c", code]
        return timed(command)

    def upload(self, name: str, content: bytes) -> float:
        # `docker cp` reaches neither a read-only root nor a tmpfs.
        command = ["docker", "exec", "--interactive", self.container, "sh", "-c", f"cat > /mnt/data/{name}"]
        begun = time.perf_counter()
        # With more pipes the time would include copying by the client.
        done = subprocess.run(command, input=content, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - begun
        right(done.returncode == 0, "docker exec cat >", done.returncode)
        return seconds

    def download(self, name: str) -> tuple[float, bytes]:
        command = ["docker", "exec", self.container, "cat", f"/mnt/data/{name}"]
        begun = time.perf_counter()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - begun
        right(done.returncode == 0, "docker exec cat", done.returncode)
        return seconds, done.stdout

    def digest(self, name: str) -> str:
        return docker("exec", self.container, "sha256sum", f"/mnt/data/{name}").decode().split()[0]


def timed(command: list[str]) -> Ran:
    """Times a command from before its start to after its end."""
    begun = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
    seconds = time.perf_counter() - begun
    return Ran(seconds, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def run_once(run: str, image: str, options: list[str], code: str, stdout: str) -> tuple[float, float]:
    """Runs `docker run --rm`; returns the seconds until the answer, and until the container is removed."""
    command = ["docker", "run", "--rm", f"--label={LABEL}={run}", *options, "--entrypoint=python3", image, "-c", code]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout
        answer = process.stdout.read(len(stdout))
        first = time.perf_counter() - begun
        rest = process.stdout.read()
        process.wait(PATIENCE_S)
    whole = time.perf_counter() - begun
    right((process.returncode, (answer + rest).decode()) == (0, stdout), "docker run", process.returncode, answer)
    return first, whole


@dataclass(frozen=True)
class Memory:
    """Memory of a container in bytes: `used` as `docker stats` counts it, without caches."""

    used: int
    anonymous: int | None = None
    files: int | None = None

    def report(self) -> dict[str, float | None]:
        figures = {"mb": self.used, "anonymous_mb": self.anonymous, "files_mb": self.files}
        return {name: None if size is None else round(size / 1e6, 1) for name, size in figures.items()}


def memory(container: str) -> Memory:
    """Reads the memory from the control group if that is on this machine, or else from the engine."""
    try:
        return from_control_group(main_process(container))
    except (OSError, KeyError, StopIteration):
        shown = docker("stats", "--no-stream", "--format", "{{.MemUsage}}", container).decode()
        return Memory(parse_size(shown.split("/")[0].strip()))


@cache
def main_process(container: str) -> int:
    return int(docker("inspect", "--format", "{{.State.Pid}}", container))


def from_control_group(pid: int) -> Memory:
    root = Path("/sys/fs/cgroup")
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    old = next((path for _, controllers, path in groups if "memory" in controllers.split(",")), None)
    if old is not None:
        folder, usage, names = root / "memory" / old.lstrip("/"), "memory.usage_in_bytes", "total_{}"
        anonymous = "rss"
    else:
        folder = root / next(path for number, _, path in groups if number == "0").lstrip("/")
        usage, names, anonymous = "memory.current", "{}", "anon"
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    wanted = ("inactive_file", anonymous, "active_file")
    cached, own, files = (int(stat[names.format(name)]) for name in wanted)
    return Memory(int((folder / usage).read_text()) - cached, own, files)


def parse_size(text: str) -> int:
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}
    unit = next(unit for unit in units if text.endswith(unit))
    return int(float(text.removesuffix(unit)) * units[unit])


def until_still(ids: list[str], patience_s: float = 15) -> None:
    """Waits until the containers' memory is stable: they have then loaded everything that they load ahead."""
    deadline, before = time.monotonic() + patience_s, -1
    while time.monotonic() < deadline:
        now = sum(memory(container).used for container in ids)
        if before >= 0 and abs(now - before) <= 0.01 * before:
            return
        before = now
        time.sleep(0.3)


def still_memory(container: str) -> Memory:
    """The memory of a container that has loaded everything that it loads ahead."""
    until_still([container])
    return memory(container)


def versions() -> dict[str, str]:
    template = "{{.Client.Version}}|{{.Server.Version}}|{{.Server.APIVersion}}"
    client, server, api = docker("version", "--format", template).decode().strip().split("|")
    groups = docker("info", "--format", "cgroup v{{.CgroupVersion}}, {{.DefaultRuntime}}, {{.Driver}}").decode().strip()
    return {"client": client, "engine": server, "api": api, "host": groups}


def machine() -> dict[str, Any]:
    """Processor, memory and kernel; no host name."""
    lines = (line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    model = next((value.strip() for name, value in lines if name.strip() == "model name"), os.uname().machine)
    total = Path("/proc/meminfo").read_text().split()[1]
    memory_gb = round(int(total) * 1024 / 1e9, 1)
    return {"cpu": model, "cores": os.cpu_count(), "memory_gb": memory_gb, "kernel": os.uname().release.partition("-")[0]}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
