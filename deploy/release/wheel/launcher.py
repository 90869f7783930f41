"""Starts the program that is in this package."""

import os
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Becomes the program, with the same arguments."""
    # `runtime install` starts `python3 -m pip`: the pip that this package depends on, whatever the system has.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH") or os.defpath])
    os.execv(Path(__file__).parent / "llm-sandbox", ["llm-sandbox", *sys.argv[1:]])
