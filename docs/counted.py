"""Counts the tests in a log of tests/run.sh, and puts the counts into docs/reliability.md:

    tests/run.sh 2>&1 | tee log
    python3 docs/counted.py log

Rust tests are counted by program and file, the checks of other stages by stage.
"""

import collections
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

from measured import put

STAGE = re.compile(r"=== (.*?) \(\d+ s\) ===")
PROGRAM = re.compile(r"\s+Running (?:unittests )?(\S+)")
TEST = re.compile(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)")
CHECKS = re.compile(r"(\d+) passed, (\d+) failed$")


def program(path: str) -> str:
    """Name of what cargo runs: `tests/drills/main.rs` and `tests/drills.rs` are drills."""
    parts = Path(path).with_suffix("").parts
    return parts[-2] if parts[-1] == "main" and parts[0] == "tests" else parts[-1] if parts[0] == "tests" else path


def count(lines: list[str]) -> dict[tuple[str, str], collections.Counter]:
    """How each test ended, by program and file."""
    found = collections.defaultdict(collections.Counter)
    stage = running = ""
    for line in lines:
        if title := STAGE.match(line):
            stage = title[1]
        elif started := PROGRAM.match(line):
            running = program(started[1])
        elif test := TEST.match(line):
            name = test[1].split("::")
            found[running, name[0] if len(name) > 1 else ""][test[2]] += 1
        elif checks := CHECKS.search(line.rstrip()):
            found[stage, ""] += collections.Counter({"ok": int(checks[1]), "FAILED": int(checks[2])})
    return found


def table(found: dict[tuple[str, str], collections.Counter]) -> str:
    rows = [["program or stage", "file", "passed", "failed"], ["---", "---", "---:", "---:"]]
    rows += [[name, file, str(ends["ok"]), str(ends["FAILED"])] for (name, file), ends in found.items()]
    everything = sum(found.values(), collections.Counter())
    rows.append(["in all", "", f"{everything['ok']:,}", str(everything["FAILED"])])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    counted = count(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace").splitlines())
    if not counted:
        raise SystemExit(f"{sys.argv[1]} has no tests in it")
    put("docs/reliability.md", "tests", f"{table(counted)}\n{datetime.now(timezone.utc):%Y-%m-%d}.")
