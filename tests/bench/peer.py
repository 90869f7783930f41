"""The PyPI package `llm-sandbox`, used in a virtual environment of its own.

It gets every setting that makes it fast and that its interface supports: one session that stays open, no set-up of an
environment, its own pool in those rows in which ours may use one, and a container that stops at once. If it does not
support one of our limits, it gets a less strict one:

- It copies each program into the container through the archive interface, which reaches neither a read-only root nor a
  tmpfs. So its root is writable, and /mnt/data is part of it.
- It runs as root, its default, because another user would cost it an additional command for each call. This root has no
  capability except DAC_OVERRIDE, without which it could not open files of other users.
"""

from pathlib import Path
from typing import Any

from engine import LABEL, STAY, Limits
from measure import Ran, right
from worker import Worker
from workloads import PRINT

# For a session from its pool, see `Peer.fill_pool` of the worker.
VENV = "/mnt/data/.sandbox-venv/bin"
POOLED_STAY = (
    f"mkdir -p {VENV} && printf '#!/bin/sh\\nexec python3 \"$@\"\\n' >{VENV}/python && chmod +x {VENV}/python && {STAY}"
)

SETTINGS = [
    "one SandboxSession kept open: lang=python, keep_template=True, skip_environment_setup=True, workdir=/mnt/data",
    "the limits of ours by runtime_configs, but: root can be written to and /mnt/data lies on it (it copies files by "
    "the archive interface, which reaches no read-only root and no tmpfs); user root, its default (as another it "
    "would run one command more a call), without capabilities but DAC_OVERRIDE",
    "stop_signal=SIGKILL, or each close would wait ten seconds",
    "first call, pooled: its own pool, one container ahead (handed back and used again, not a fresh one a session)",
    "timed inside its process, around its own calls; in parallel: a thread for each session",
]


def runtime_configs(run: str, limits: Limits) -> dict[str, Any]:
    """The part of the limits that its interface supports."""
    host = limits.host
    return {
        "entrypoint": ["sh", "-c", STAY],
        "stop_signal": "SIGKILL",
        "user": "root",
        "cap_drop": ["ALL"],
        "cap_add": ["DAC_OVERRIDE"],
        "security_opt": ["no-new-privileges:true", f"seccomp={limits.seccomp}"],
        "network_disabled": True,
        "network_mode": "none",
        "mem_limit": host["Memory"],
        "memswap_limit": host["MemorySwap"],
        "nano_cpus": host["NanoCpus"],
        "cpu_shares": host["CpuShares"],
        "pids_limit": host["PidsLimit"],
        "shm_size": host["ShmSize"],
        "oom_score_adj": host["OomScoreAdj"],
        "ipc_mode": host["IpcMode"],
        "cgroupns": host["CgroupnsMode"],
        "tmpfs": {path: rest for path, rest in host["Tmpfs"].items() if path != "/mnt/data"},
        "environment": list(limits.config["Env"]),
        "hostname": limits.config["Hostname"],
        "labels": {LABEL: run},
    }


class Peer:
    """A session that stays open. One worker process can have several."""

    key = "peer"

    def __init__(self, worker: Worker, folder: Path, session: str = "warm") -> None:
        self.worker, self.session = worker, session
        self._folder = folder / "peer"
        self._folder.mkdir(exist_ok=True)
        self.container: str = worker.ask("open", name=session)["container"]

    def run(self, code: str) -> Ran:
        return Ran(**self.worker.ask("run", name=self.session, code=code))

    def upload(self, name: str, content: bytes) -> float:
        source = self._folder / name
        source.write_bytes(content)
        target = f"/mnt/data/{name}"
        answer = self.worker.ask("upload", name=self.session, source=str(source), target=target)
        return float(answer["seconds"])

    def download(self, name: str) -> tuple[float, bytes]:
        target = self._folder / f"got-{name}"
        target.unlink(missing_ok=True)
        source = f"/mnt/data/{name}"
        took = self.worker.ask("download", name=self.session, source=source, target=str(target))["seconds"]
        return float(took), target.read_bytes()

    def digest(self, name: str) -> str:
        command = f"sha256sum /mnt/data/{name}"
        answer = self.worker.ask("execute", name=self.session, command=command)
        return str(answer["stdout"]).split()[0]


def start_worker(bench: Any, limits: Limits) -> Worker:
    """Starts the worker of a `lineup.Bench`, which ends with it."""
    worker = Worker.script(bench.venv / "bin/python", "peer_worker.py", bench.folder)
    bench.stack.callback(worker.end)
    ulimits = [{"name": one["Name"], "soft": one["Soft"], "hard": one["Hard"]} for one in limits.host["Ulimits"]]
    worker.ask("configure", image=limits.image, settings=runtime_configs(bench.run, limits), ulimits=ulimits)
    return worker


def prove(peer: Peer) -> None:
    """Checks that the package works here, with every operation that is needed later."""
    right(peer.run(PRINT).stdout == "4\n", "print")
    peer.upload("proof", b"proof")
    right(peer.download("proof")[1] == b"proof", "a file there and back")
    peer.worker.ask("fill_pool", prepare=POOLED_STAY)
    right(peer.worker.ask("pooled", code=PRINT)["stdout"] == "4\n", "print in a session out of its pool")


def version(venv: Path) -> str:
    """The version of the installed package, without importing it."""
    found = sorted(venv.glob("lib/python*/site-packages/llm_sandbox-*.dist-info"))
    return found[-1].name.removeprefix("llm_sandbox-").removesuffix(".dist-info")
