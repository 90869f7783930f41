#!/usr/bin/env python3
"""Refuses doc comments that do not name their subject: those that begin with one of WORDS. Part of the lints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("What", "That of", "Those of", "Of", "One that", "Whoever")


def beginnings(text: str):
    """Line numbers and first lines of the doc comments of a file."""
    before = ""
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.match(r"\s*//([/!]) ?(.*)", line)
        if comment and not re.match(rf"\s*//{comment[1]}", before):
            yield number, comment[2]
        before = line


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True)
    found = [
        f"{path}:{number}: {text}"
        for path in listed.stdout.split("\0")
        if path and (ROOT / path).is_file()
        for number, text in beginnings((ROOT / path).read_text(encoding="utf-8"))
        if text.startswith(tuple(f"{word} " for word in WORDS))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    if found:
        print(f"{len(found)} doc comments begin with a word of which the reader has to guess the noun: name it.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
