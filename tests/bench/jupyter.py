"""A Jupyter kernel with its own client, in a container with the limits of ours.

Client and kernel communicate over sockets of files, and the time is measured in the client: unlike ours, the figure
does not include the way into the container.
"""

import json
import subprocess
from pathlib import Path

from engine import LABEL
from measure import Ran
from worker import Worker

# The path of the packages in the container.
PACKAGES = "/opt/jupyter"

SETTINGS = [
    "jupyter_client's BlockingKernelClient.execute_interactive and an ipykernel, in a container with the limits of "
    "ours, which besides has sockets of all kinds and may look at how its threads are scheduled; both in there; timed "
    "around the client's call; figures by matplotlib's inline backend",
]


class Jupyter:
    key = "jupyter"

    def __init__(self, run: str, folder: Path, image: str, options: list[str], packages: Path) -> None:
        mounted = [f"--volume={packages}:{PACKAGES}:ro", f"--env=PYTHONPATH={PACKAGES}"]
        wider = [f"--label={LABEL}={run}", *(with_more_calls(option, folder) for option in options), *mounted]
        name = f"llm-sandbox-bench-jupyter-{run}"
        self.worker = Worker.contained("jupyter_worker.py", name, wider, image, folder)
        self.worker.ask("start")

    def run(self, code: str) -> Ran:
        return Ran(**self.worker.ask("run", code=code))


def with_more_calls(option: str, folder: Path) -> str:
    """The seccomp option with the additional calls that ZeroMQ needs to start; other options unchanged."""
    name, _, path = option.rpartition("=")
    if not name.endswith("seccomp"):
        return option
    profile = json.loads(Path(path).read_text())
    names = ["sched_getparam", "sched_getscheduler", "sched_setscheduler", "socket"]
    profile["syscalls"].append({"names": names, "action": "SCMP_ACT_ALLOW"})
    wider = folder / "seccomp-jupyter.json"
    wider.write_text(json.dumps(profile))
    return f"{name}={wider}"


def install(python: Path, folder: Path, image: str) -> Path:
    """Installs the packages for the image's version of Python, which differs from that of this machine."""
    version = subprocess.run(
        ["docker", "run", "--rm", "--network=none", "--entrypoint=python3", image, "-c",
         "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, check=True, text=True,
    ).stdout.strip()  # fmt: skip
    target = folder / "packages"
    wheels = ["--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64"]
    wanted = Path(__file__).with_name("jupyter_requirements.txt")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"--python-version={version}",
         *wheels, f"--target={target}", "-r", wanted],
        check=True,
    )  # fmt: skip
    return target
