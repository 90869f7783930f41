"""Prints, for a shell, the package of npm that the embedded engine's runtime is made from, as the program pins it."""

import re
from pathlib import Path

PINS = Path(__file__).resolve().parents[2] / "crates/backend/src/wasm/packages.rs"

pin = re.search(
    r'from: Index::Npm,\s+name: "([^"]+)",\s+version: "([^"]+)",\s+sha256: "([0-9a-f]{64})"', PINS.read_text("utf-8")
)
if not pin:
    raise SystemExit(f"{PINS} pins no package of npm")
name, version, digest = pin.groups()
print(f"QUICKJS={name}@{version}\nQUICKJS_FILE={name}-{version}.tgz\nQUICKJS_SHA256={digest}")
