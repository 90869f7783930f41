#!/usr/bin/env python3
"""How long install_package takes, in containers, with the package index that this machine uses.

    tests/bench/packages.py [--binary FILE] [--turns N] [--image NAME]

In each turn, for each package: `by hand`, the image's own pip or npm in a container with a network, which resolves the
package and its dependencies and downloads them; `first`, install_package in a session of a server that has fetched
nothing yet; `again`, install_package in another session of that server, which has the package in its cache; `import`,
the first cell that imports it. The sessions exist before, and have run a cell. The figures are medians; the ratio is
that of `first` to `by hand`. No figure is a failure; a wrong answer is.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from measure import right
from server import Server

ROOT = Path(__file__).resolve().parents[2]
PIP = ["python", "-I", "/opt/sandbox/pip.zip/pip", "download", "-q", "--no-cache-dir", "--only-binary", ":all:"]
NPM = ["node", "/opt/sandbox/npm/bin/npm-cli.js", "install", "--silent", "--ignore-scripts", "--no-audit"]
# Each package with its first cell and that cell's value.
PACKAGES = {
    "humanize": ("python", "import humanize\nhumanize.intcomma(1000)", "'1,000'"),
    "rapidfuzz": ("python", "from rapidfuzz import fuzz\nfuzz.ratio('a', 'a')", "100.0"),
    "lodash": ("javascript", "require('lodash').chunk([1, 2], 1).length", "2"),
    "express": ("javascript", "typeof require('express')", "'function'"),
}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def by_hand(image: str, package: str, language: str) -> float:
    variables = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL", "NPM_CONFIG_REGISTRY"]
    options = [part for name in variables if name in os.environ for part in ("--env", name)]
    if CERTIFICATES.exists():
        options += ["--volume", f"{CERTIFICATES}:/ca.pem:ro"]
        options += ["--env", "PIP_CERT=/ca.pem", "--env", "NODE_EXTRA_CA_CERTS=/ca.pem"]
    tool = PIP + ["--dest", "/tmp/wheels"] if language == "python" else NPM + ["--cache", "/tmp/cache", "--prefix", "/tmp/all"]
    command = ["docker", "run", "--rm", *options, "--tmpfs", "/tmp", "--workdir", "/tmp", "--entrypoint", tool[0]]
    begun = time.perf_counter()
    done = subprocess.run([*command, image, *tool[1:], package], capture_output=True, text=True)
    right(done.returncode == 0, "it cannot be downloaded by hand", done.stderr[-500:])
    return time.perf_counter() - begun


def turn(binary: Path, folder: Path, image: str, package: str, times: dict[str, list[float]]) -> None:
    language, code, result = PACKAGES[package]
    times["by hand"].append(by_hand(image, package, language))
    settings = {"SANDBOX_ENGINE": "docker", "SANDBOX_IMAGE": image, "SANDBOX_PACKAGES": "any"}
    server = Server(binary, folder, package, settings)
    for session, kind in (("one", "first"), ("other", "again")):
        server.call("execute_code", session_id=session, code="1", language=language)
        seconds, answer = server.call("install_package", session_id=session, package=package, language=language)
        right(answer["installed"], "it was there", answer)
        times[kind].append(seconds)
    seconds, answer = server.call("execute_code", session_id="other", code=code, language=language)
    right(answer["result"] == result, "not the result", answer)
    times["import"].append(seconds)
    right(server.end() == 0, "it does not end as it should")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/llm-sandbox")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--image", default="llm-sandbox:latest")
    arguments = parser.parse_args()
    all_times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.turns):
            for package in PACKAGES:
                times = all_times.setdefault(package, {kind: [] for kind in ("by hand", "first", "again", "import")})
                turn(arguments.binary.resolve(), Path(folder), arguments.image, package, times)
    print("| package | by hand | first | again | import | first / by hand |")
    print("|---|---:|---:|---:|---:|---:|")
    for package, times in all_times.items():
        medians = {kind: statistics.median(seconds) for kind, seconds in times.items()}
        shown = " | ".join(f"{seconds * 1000:.0f} ms" for seconds in medians.values())
        print(f"| {package} | {shown} | {medians['first'] / medians['by hand']:.2f} |")


if __name__ == "__main__":
    main()
