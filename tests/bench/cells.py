"""Cells: `execute_code` in a workspace, compared with a Jupyter kernel used by its own client in an equal container,
and with the PyPI package's InteractiveSandboxSession; and abilities of only our server: rolling back after a stop.

Contestants take turns as in the other rows, on the same image and under the same limits, and each answer is checked.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import engine
import jupyter
import peer
import report
from lineup import POOL, Bench
from measure import GAP_S, Ran, Samples, right
from rows import Figures, Row, program, rounds
from server import Server
from workloads import PRINT, Workload

ROWS = {
    "print": "print(2+2)",
    "frame": "a small DataFrame, shown",
    "chart": "a chart, the second of its workspace or a later one",
    "javascript": "console.log(2 + 2)",
    "first": "first cell of a new session",
    "rollback": "a cell that is stopped after a second, beyond that second",
    "after": "the next cell after it",
}
OTHERS = {"jupyter": "Jupyter kernel, its own client", "peer": "PyPI llm-sandbox, InteractiveSandboxSession"}

FRAME = """\
import pandas as pd

frame = pd.DataFrame({"name": ["a", "b", "c"], "amount": [1, 2, 3]})
print(frame["amount"].sum())
frame
"""
CHART = """\
import matplotlib.pyplot as plt

days = list(range(1, 31))
fig, ax = plt.subplots(figsize=(8, 4.5))
ax.plot(days, [day * day % 17 for day in days], label="visits")
ax.set_title("Visits by day")
ax.legend()
plt.show()
"""
SPIN = "count = 1\nwhile True: pass"
DEADLINE_S = 1

# After this time the memory of a session from the pool is stable, and the next pooled session has started.
SETTLE_S = 3


def ours_run(server: Server, session: str, code: str, **more: Any) -> Ran:
    """A cell in a workspace of ours, over stdio."""
    seconds, answer = server.call("execute_code", session_id=session, code=code, **more)
    shown = [answer["result"]] if "result" in answer else []
    shown += [one["mime_type"] for one in answer["artifacts"]]
    return Ran(seconds, answer["exit_code"], answer["stdout"], answer["stderr"], {"shown": shown, "answer": answer})


class Frame(Workload):
    def check(self, ran: Ran) -> None:
        shown = "".join(ran.about.get("shown", [])) or ran.stdout
        right(ran.exit_code == 0 and ran.stdout.startswith("6\n") and "amount" in shown, ran)


class Chart(Workload):
    def check(self, ran: Ran) -> None:
        right(ran.exit_code == 0, ran)
        if "shown" in ran.about:
            right("image/png" in ran.about["shown"], ran)


CELLS = [Workload("print", PRINT, "4\n"), Frame("frame", FRAME), Chart("chart", CHART)]


def measure(bench: Bench, iterations: int) -> dict[str, Any]:
    server = bench.stack.enter_context(bench.server("cells", POOL))
    ours = partial(ours_run, server, bench.session("cells"))
    ours(PRINT)
    limits = engine.Limits.of(server.container_of(bench.session("cells")))
    runs = {"ours": ours} | others(bench, limits)
    cells = [Row({key: partial(program, run, cell) for key, run in runs.items()}) for cell in CELLS]
    bench.step("every cell twice")
    rounds(cells, 2, Samples())
    samples = Samples()
    bench.step(f"cells, {iterations} rounds")
    rounds([*cells, Row({"ours": partial(alone, server, ours)})], iterations, samples)
    found = {row: samples.of(row) for row in ROWS}
    return {"cells": found, "memory": memory(bench, server), "notes": bench.notes, "limits": limits.sentence()}


def others(bench: Bench, limits: engine.Limits) -> dict[str, Callable[[str], Ran]]:
    def of_jupyter() -> Callable[[str], Ran]:
        packages = jupyter.install(Path(sys.executable), bench.folder, limits.image)
        kernel = jupyter.Jupyter(bench.run, bench.folder, limits.image, limits.options(bench.folder), packages)
        bench.stack.callback(kernel.worker.end)
        return kernel.run

    def of_peer() -> Callable[[str], Ran]:
        """The package's session with a persistent interpreter."""
        worker = peer.start_worker(bench, limits)
        worker.ask("open_interactive", name="cells")
        return lambda code: Ran(**worker.ask("run", name="cells", code=code))

    found = {
        "jupyter": bench.optional("a Jupyter kernel", of_jupyter, wants_venv=False),
        "peer": bench.optional("InteractiveSandboxSession of PyPI llm-sandbox", of_peer),
    }
    return {key: run for key, run in found.items() if run}


def alone(server: Server, ours: Callable[..., Ran], number: int) -> Figures:
    """Measures calls that the others do not have, or not in the same form."""
    figures: Figures = {}
    ran = ours("console.log(2 + 2)", language="javascript")
    right(ran.stdout == "4\n", ran)
    if number:
        # The first call starts Node.
        figures["javascript"] = ran.seconds
    if number % 3:
        return figures
    _, made = server.call("create_session")
    time.sleep(SETTLE_S)
    first = ours_run(server, made["session_id"], PRINT)
    right(first.stdout == "4\n", first)
    server.close(made["session_id"])
    ours("count = 41")
    time.sleep(GAP_S)
    stopped = ours(SPIN, timeout=DEADLINE_S)
    right(stopped.about["answer"]["state"] == "rolled_back", stopped)
    after = ours("print(count + 1)")
    right(after.stdout == "42\n", after)
    return figures | {"first": first.seconds, "rollback": stopped.seconds - DEADLINE_S, "after": after.seconds}


def memory(bench: Bench, server: Server) -> dict[str, Any]:
    """Memory of a session without a workspace, and of the same session after some cells."""
    session = bench.session("memory")
    server.call("run_python", session_id=session, code=PRINT)
    idle = engine.still_memory(server.container_of(session))
    for number in range(8):
        ours_run(server, session, f"value_{number} = {number}\n{PRINT}")
    workspace = engine.still_memory(server.container_of(session))
    server.close(session)
    return {"session": idle.report(), "workspace": workspace.report()}


def markdown(results: dict[str, Any]) -> str:
    def shown(row: str, key: str) -> str:
        found, ours = results["cells"][row].get(key), results["cells"][row].get("ours")
        if not found:
            return "-"
        ratio = f", {found['median'] / ours['median']:.1f}x" if key != "ours" and ours else ""
        return f"{found['median']:.1f} ms{ratio}"

    rows = [[ROWS[row], *(shown(row, key) for key in ("ours", *OTHERS))] for row in ROWS if results["cells"][row]]
    session, workspace = (results["memory"][key]["mb"] for key in ("session", "workspace"))
    memory = f"Memory of an idle session: {session:.0f} MB; after eight cells, with five to take back: {workspace:.0f} MB."
    return f"{report.table(['', 'ours', *OTHERS.values()], rows)}\n{memory}"


def where(results: dict[str, Any]) -> str:
    return f"Medians of the whole call as its client sees it, in turns; {report.where(results)}. {'; '.join(jupyter.SETTINGS)}."
