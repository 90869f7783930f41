"""Writes the measurements of a command into a page, between the two lines that name them:

    <!-- measured: NAME -->
    ...
    <!-- end -->

    python3 docs/measured.py PAGE NAME < text

PAGE is relative to the repository. Measurements get into the pages this way only, never by hand.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def put(page: str, name: str, text: str) -> None:
    """Replaces the text between the lines of this name. A page without them is an error."""
    path = ROOT / page
    block = re.compile(rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    written, found = block.subn(lambda lines: f"{lines[1]}{text.strip()}\n{lines[2]}", path.read_text(encoding="utf-8"))
    if found != 1:
        raise SystemExit(f"{page} has {found} places for {name}")
    path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    put(sys.argv[1], sys.argv[2], sys.stdin.read())
