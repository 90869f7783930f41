"""Cells: `execute_code` in a workspace, compared with a Jupyter kernel used by its own client in an equal container,
and with the PyPI package's InteractiveSandboxSession; and abilities of only our server: rolling back after a stop.

Contestants take turns as in the other rows, on the same image and under the same limits, and each answer is checked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import engine
import jupyter
import peer
from lineup import Bench
from measure import GAP_S, Ran, Samples, Wrong, right
from server import Server
from worker import Worker

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

PRINT = "print(2+2)"
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


class Contestant(Protocol):
    key: str

    def run(self, code: str) -> Ran: ...


class Ours:
    """A workspace of ours, over stdio."""

    key = "ours"

    def __init__(self, server: Server, session: str) -> None:
        self.server, self.session = server, session

    def run(self, code: str, **more: Any) -> Ran:
        seconds, answer = self.server.call("execute_code", session_id=self.session, code=code, **more)
        about = {"shown": [answer["result"]] if "result" in answer else [], "answer": answer}
        about["shown"] += [one["mime_type"] for one in answer["artifacts"]]
        return Ran(seconds, answer["exit_code"], answer["stdout"], answer["stderr"], about)


class Interactive:
    """The package's session with a persistent interpreter."""

    key = "peer"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        worker.ask("open_interactive", name="cells")

    def run(self, code: str) -> Ran:
        return Ran(**self.worker.ask("run", name="cells", code=code))


@dataclass(frozen=True)
class Cell:
    key: str
    code: str
    check: Callable[[Ran], None]


def prints(text: str) -> Callable[[Ran], None]:
    return lambda ran: right((ran.exit_code, ran.stdout) == (0, text), ran)


def shows_frame(ran: Ran) -> None:
    shown = "".join(ran.about.get("shown", [])) or ran.stdout
    right(ran.exit_code == 0 and ran.stdout.startswith("6\n") and "amount" in shown, ran)


def shows_chart(ran: Ran) -> None:
    right(ran.exit_code == 0, ran)
    if "shown" in ran.about:
        right("image/png" in ran.about["shown"], ran)


CELLS = [Cell("print", PRINT, prints("4\n")), Cell("frame", FRAME, shows_frame), Cell("chart", CHART, shows_chart)]


def measure(bench: Bench, python: Path, iterations: int) -> dict[str, Any]:
    server = bench.stack.enter_context(bench.server("cells", {"SANDBOX_POOL_SIZE": "1"}))
    ours = Ours(server, bench.session("cells"))
    ours.run(PRINT)
    limits = engine.Limits.of(server.container_of(ours.session))
    contestants: list[Contestant] = [ours, *others(bench, python, limits)]
    bench.step("every cell twice")
    for contestant in contestants:
        for cell in CELLS * 2:
            cell.check(contestant.run(cell.code))
    samples = Samples()
    bench.step(f"cells, {iterations} rounds")
    for number in range(iterations):
        for cell in CELLS:
            for contestant in contestants[number % len(contestants) :] + contestants[: number % len(contestants)]:
                time.sleep(GAP_S)
                ran = contestant.run(cell.code)
                cell.check(ran)
                samples.add(cell.key, contestant.key, ran.seconds)
        for key, seconds in alone(server, ours, number):
            samples.add(key, "ours", seconds)
    found = {row: samples.of(row) for row in ROWS}
    return {"cells": found, "memory": memory(bench, server), "notes": bench.notes, "limits": limits.sentence()}


def others(bench: Bench, python: Path, limits: engine.Limits) -> Iterator[Contestant]:
    options = limits.options(bench.folder)
    try:
        packages = jupyter.install(python, bench.folder, limits.image)
        found = jupyter.Jupyter(bench.run, bench.folder, limits.image, options, packages)
        bench.stack.callback(found.worker.end)
        yield found
    except (Wrong, OSError, ValueError) as error:
        bench.note(f"a Jupyter kernel does not work here and is left out: {error}")
    if bench.venv is None:
        bench.note("PyPI llm-sandbox was left out")
        return
    try:
        worker = peer.start_worker(bench.venv / "bin/python", bench.folder, bench.run, limits)
        bench.stack.callback(worker.end)
        yield Interactive(worker)
    except (Wrong, OSError) as error:
        bench.note(f"InteractiveSandboxSession does not work here without a network and is left out: {error}")


def alone(server: Server, ours: Ours, number: int) -> Iterator[tuple[str, float]]:
    """Measures calls that the others do not have, or not in the same form."""
    time.sleep(GAP_S)
    ran = ours.server.call("execute_code", session_id=ours.session, language="javascript", code="console.log(2 + 2)")
    right(ran[1]["stdout"] == "4\n", ran)
    if number:
        # The first call starts Node.
        yield "javascript", ran[0]
    if number % 3:
        return
    _, made = server.call("create_session")
    time.sleep(SETTLE_S)
    first, answer = server.call("execute_code", session_id=made["session_id"], code=PRINT)
    right(answer["stdout"] == "4\n", answer)
    server.close(made["session_id"])
    yield "first", first
    ours.run("count = 41")
    time.sleep(GAP_S)
    stopped = ours.run(SPIN, timeout=DEADLINE_S)
    right(stopped.about["answer"]["state"] == "rolled_back", stopped)
    yield "rollback", stopped.seconds - DEADLINE_S
    after = ours.run("print(count + 1)")
    right(after.stdout == "42\n", after)
    yield "after", after.seconds


def memory(bench: Bench, server: Server) -> dict[str, Any]:
    """Memory of a session without a workspace, and of the same session after some cells."""
    ours = Ours(server, bench.session("memory"))
    server.call("run_python", session_id=ours.session, code=PRINT)
    container = server.container_of(ours.session)
    engine.until_still([container])
    idle = engine.memory(container)
    for number in range(8):
        ours.run(f"value_{number} = {number}\n{PRINT}")
    engine.until_still([container])
    workspace = engine.memory(container)
    server.close(ours.session)
    return {"session": idle.report(), "workspace": workspace.report()}


def markdown(results: dict[str, Any]) -> str:
    def shown(row: str, key: str) -> str:
        found, ours = results["cells"][row].get(key), results["cells"][row].get("ours")
        if not found:
            return "-"
        ratio = f", {found['median'] / ours['median']:.1f}x" if key != "ours" and ours else ""
        return f"{found['median']:.1f} ms{ratio}"

    lines = [f"| | ours | {' | '.join(OTHERS.values())} |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {title} | {' | '.join(shown(row, key) for key in ('ours', *OTHERS))} |"
        for row, title in ROWS.items()
        if results["cells"][row]
    ]
    session, workspace = (results["memory"][key]["mb"] for key in ("session", "workspace"))
    lines += ["", f"Memory of an idle session: {session:.0f} MB; after eight cells, with five to take back: {workspace:.0f} MB."]
    return "\n".join(lines)


def where(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"Medians of the whole call as its client sees it, in turns; {machine['cpu']}, {machine['cores']} cores, "
        f"{results['date'][:10]}. {'; '.join(jupyter.SETTINGS)}."
    )
