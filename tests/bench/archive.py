"""The duration of archive operations: saving a session of 50 MB to a folder, and restoring a workspace of 20 variables.

    python3 tests/bench/archive.py PROGRAM [ROUNDS]

The figures are those of the server's log, which do not contain the start of a sandbox; the call that restores is
also timed as its caller sees it, with that start.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from server import Server  # noqa: E402

VARIABLES = """
import numpy as np, pandas as pd
tables = {f't{n}': pd.DataFrame(np.random.rand(2000, 5), columns=list('abcde')) for n in range(10)}
globals().update(tables)
def total(name): return globals()[name].a.sum()
class Point: pass
p = Point(); words = ['a'] * 1000; numbers = list(range(10000)); text = 'x' * 10000
f = lambda n: n + 1; start, end, rate = 1, 2, 3.5
"""


def lines(log, message):
    found = (json.loads(line) for line in log.read_text().splitlines())
    return [line for line in found if line.get("message") == message]


def main(binary, rounds):
    saves, restores, calls = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            settings = {
                "SANDBOX_ARCHIVE": str(folder / "archive"),
                "SANDBOX_POOL_SIZE": "0",
                "SANDBOX_PRELOAD": os.environ.get("PRELOAD", "numpy,pandas"),
            }
            settings |= {name: os.environ[name] for name in ("SANDBOX_ENGINE", "SANDBOX_IMAGE") if name in os.environ}
            one = Server(binary, folder, "one", settings)
            one.call("execute_code", session_id="files", code="import os; open('x', 'wb').write(os.urandom(50_000_000)); None")
            one.process.send_signal(signal.SIGTERM)
            one.end()
            saves += [line["took_ms"] for line in lines(one.log, "session archived")]
            two = Server(binary, folder, "two", settings)
            two.call("execute_code", session_id="variables", code=VARIABLES)
            two.process.send_signal(signal.SIGTERM)
            two.end()
            three = Server(binary, folder, "three", settings)
            seconds, back = three.call("execute_code", session_id="variables", code="p, f(1), total('t3') > 0")
            assert "brought back" in json.dumps(back["notes"]), back
            calls.append(seconds * 1000)
            restores += [
                line["took_ms"]
                for line in lines(three.log, "session restored from the archive")
            ]
            three.call("close_session", session_id="variables")
            three.end()
    for name, values in ("save of 50 MB", saves), ("restore of 20 variables", restores), ("the call that restores them", calls):
        print(f"{name:30} median {statistics.median(values):8.0f} ms   {[round(value) for value in values]}")


main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
