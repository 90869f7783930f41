"""Counts the tests of a run of tests/run.sh, and writes the counts into docs/reliability.md:

    tests/run.sh full 2>&1 | tee log
    python3 docs/counted.py log target/nextest/default/junit.xml

Rust tests are counted by program, the checks of other stages by stage.
"""

import collections
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree

from measured import put

STAGE = re.compile(r"=== (.*?) \(\d+ s\) ===")
CHECKS = re.compile(r"(\d+) passed, (\d+) failed$")


def count(lines: list[str], tests: ElementTree.ElementTree) -> dict[str, collections.Counter]:
    """The results of the tests of each program and of the checks of each stage."""
    found = collections.defaultdict(collections.Counter)
    for suite in tests.iter("testsuite"):
        for test in suite.iter("testcase"):
            failed = test.find("failure") is not None or test.find("error") is not None
            found[suite.get("name")]["FAILED" if failed else "ok"] += 1
    stage = ""
    for line in lines:
        if title := STAGE.match(line):
            stage = title[1]
            found.pop(stage, None)  # the first attempt, if this is the second
        elif checks := CHECKS.search(line.rstrip()):
            found[stage] += collections.Counter({"ok": int(checks[1]), "FAILED": int(checks[2])})
    return found


def table(found: dict[str, collections.Counter]) -> str:
    rows = [["program or stage", "passed", "failed"], ["---", "---:", "---:"]]
    rows += [[name, f"{ends['ok']:,}", str(ends["FAILED"])] for name, ends in found.items() if ends]
    everything = sum(found.values(), collections.Counter())
    rows.append(["in all", f"{everything['ok']:,}", str(everything["FAILED"])])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    log = Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace").splitlines()
    counted = count(log, ElementTree.parse(sys.argv[2]))
    put("docs/reliability.md", "tests", f"{table(counted)}\n{datetime.now(timezone.utc):%Y-%m-%d}.")
