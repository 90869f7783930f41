#!/usr/bin/env python3
"""Names the tests of a run of cargo-nextest that failed, or passed only at their second attempt, and why.

    tests/second_attempts.py target/nextest/gate/junit.xml

Exit code 0: at most three did. 1: more, or there is no report.
"""

import sys
import xml.etree.ElementTree as ET

MOST = 3
# Lines of a failed attempt's output that are printed, from the message of its panic.
LINES = 6

if len(sys.argv) != 2:
    sys.exit(__doc__)
try:
    cases = list(ET.parse(sys.argv[1]).iter("testcase"))
except (OSError, ET.ParseError) as error:
    sys.exit(f"no report of the tests: {error}")
if not cases:
    sys.exit("the report of the tests has none")
for case in cases:
    if case.find("failure") is not None or case.find("error") is not None:
        print(f"  failed: {case.get('classname')} {case.get('name')}")
        print(f"    run it again: cargo nextest run --workspace --all-features -E 'test(={case.get('name')})'")
again = [(case, flaky) for case in cases for flaky in case if flaky.tag.startswith("flaky")]
print(f"{len(cases)} tests, {len(again)} of them passed at their second attempt only")
for case, flaky in again:
    print(f"  second attempt: {case.get('classname')} {case.get('name')}")
    output = "\n".join(flaky.findtext(kind) or "" for kind in ("system-out", "system-err"))
    said = output[max(output.find("panicked at "), 0) :].split("stack backtrace:")[0]
    lines = [line for line in said.splitlines() if line.strip()]
    for line in lines[:LINES]:
        print(f"    | {line}")
if len(again) > MOST:
    sys.exit(f"more than {MOST} tests needed a second attempt")
