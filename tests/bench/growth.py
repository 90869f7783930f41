"""Checks for growth: many prints in one warm session, with the memory of the server and of the container from time to
time. Nothing is compared here, and calls follow each other without a gap."""

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import engine
from measure import Wrong
from server import Ours, Server
from workloads import BY_KEY

COLUMNS = ["runs", "server RSS", "server fds", "container", "container fds", "processes", "runs/s"]


def descriptors(container: str) -> tuple[str, str]:
    """Open descriptors of a container's processes, `n/a` if the host cannot read them, and the number of processes."""
    listed = engine.docker("top", container, "-eo", "pid").decode().split()[1:]
    try:
        found = str(sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in listed))
    except OSError:
        found = "n/a"
    return found, str(len(listed))


def look(server: Server, container: str, runs: int, seconds: float) -> list[str]:
    used = f"{engine.still_memory(container).used / 1e6:.1f} MB"
    resident, own = server.figures()
    fds, processes = descriptors(container)
    rate = f"{runs / seconds:.1f}" if runs else ""
    return [f"{runs:,}", f"{resident * 1024 / 1e6:.1f} MB", str(own), used, fds, processes, rate]


def grow(server: Server, session: str, runs: int, progress: Callable[[str], None]) -> tuple[list[list[str]], int]:
    """Lines of the table, and the number of wrong outputs."""
    ours, workload = Ours(server, session), BY_KEY["print"]
    workload.check(ours.run(workload.code))
    container = server.container_of(session)
    marks = {runs // 10, runs // 2, runs}
    lines, wrong, seconds = [look(server, container, 0, 0)], 0, 0.0
    for number in range(1, runs + 1):
        begun = time.perf_counter()
        try:
            workload.check(ours.run(workload.code))
        except Wrong as error:
            wrong += 1
            progress(f"wrong: run {number}: {error}")
        seconds += time.perf_counter() - begun
        if number in marks:
            lines.append(look(server, container, number, seconds))
            progress("  ".join(lines[-1]))
    return lines, wrong


def sentence(lines: list[list[str]], wrong: int) -> str:
    """The figures before and after, for the page of the documentation."""
    first, last = (dict(zip(COLUMNS, line, strict=True)) for line in (lines[0], lines[-1]))

    def change(name: str) -> str:
        return f"{first[name]} before and {last[name]} after"

    counts = ["server fds", "container fds", "processes"]
    same = all(first[name] == last[name] for name in counts)
    counted = "descriptors and processes as before" if same else ", ".join(f"{name} {change(name)}" for name in counts)
    return (
        f"{last['runs']} prints, wrong: {wrong}. The server had {change('server RSS')}, its container "
        f"{change('container')}; {counted}. {datetime.now(timezone.utc):%B %Y}."
    )
