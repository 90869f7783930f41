"""Prints what an image has, for its label: the version of Python, and the languages and libraries of its recipes with
their versions, as JSON. Runs in the image.

A recipe lists them in a file, as the label does. Instead of a version, an entry names its package, of Debian or of
Python.
"""

import json
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path


def version_of(entry):
    if package := entry.pop("debian", None):
        command = ["dpkg-query", "--show", "--showformat=${Version}", package]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # Without the epoch and the parts that are Debian's own.
        return re.match(r"(?:\d+:)?([\w.]+)", found)[1]
    if package := entry.pop("python", None):
        return metadata.version(package)
    return None


runtimes = []
for path in sorted(Path("/opt/sandbox/recipes").glob("*.json")):
    runtimes += json.loads(path.read_text())["runtimes"]
for entry in [*runtimes, *(library for runtime in runtimes for library in runtime.get("libraries", ()))]:
    if version := version_of(entry):
        entry["version"] = version
print(json.dumps({"python": platform.python_version(), "runtimes": runtimes}))
