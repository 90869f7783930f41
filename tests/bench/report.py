"""Figures into a table for people: results in, Markdown out. Pure."""

from collections.abc import Iterator
from typing import Any

Results = dict[str, Any]

ROWS = {
    "print": "print(2+2)",
    "pandas": "small pandas",
    "group_by": "group-by over a 20 KB CSV",
    "traceback": "a traceback",
    "matplotlib": "matplotlib PNG",
    "seaborn": "seaborn PNG",
    "upload": "1 MB upload",
    "download": "10 MB read",
    "first_pooled": "first call of a new session, pooled",
    "first_named": "first call of a new session, named",
    "life": "named session: begin, first call, end",
    "pipe": "one byte through a pipe and back",
}

# What the figures are held against: median in ms at most, and times faster at least.
LATENCY_TARGETS = [("print", 3, 20), ("pandas", 6, 60), ("matplotlib", 70, 15)]
FIRST_TARGETS = [("first_pooled", 15), ("first_named", 250)]
MEMORY_TARGETS = [("idle", "idle warm session", 160), ("hibernated", "hibernated session", 15)]

OTHERS = {"docker": "docker exec", "peer": "PyPI llm-sandbox"}
NOT_MEASURED = "n/a"


def ms(figure: float | None) -> str:
    if figure is None:
        return NOT_MEASURED
    return f"{figure:.3f} ms" if figure < 1 else f"{figure:.2f} ms" if figure < 10 else f"{figure:.1f} ms"


def times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def median(results: Results, row: str, key: str) -> float | None:
    found = results["latency"].get(row, {}).get(key)
    return found["median"] if found else None


def ratio(results: Results, row: str, key: str) -> float | None:
    """How many times longer another takes than ours."""
    ours, other = median(results, row, "ours"), median(results, row, key)
    return other / ours if ours and other else None


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latency(results: Results) -> str:
    def other(row: str, key: str) -> str:
        found, factor = median(results, row, key), ratio(results, row, key)
        if found is None:
            return "-" if key not in OTHERS or row == "pipe" else NOT_MEASURED
        return ms(found) + (f" / {times(factor)}" if factor and key in OTHERS else "")

    def ours(row: str) -> str:
        found = results["latency"][row].get("ours")
        return f"{ms(found['median'])} / {ms(found['p95'])}" if found else "-" if row == "pipe" else NOT_MEASURED

    rows = []
    for row, figures in results["latency"].items():
        counts = {str(found["n"]) for found in figures.values() if found}
        others = [other(row, key) for key in ("docker", "peer", "floor", "ahead")]
        rows.append([ROWS[row], ours(row), *others, "/".join(sorted(counts)) or "0"])
    head = ["one call", "ours: median / p95", "docker exec: median / ratio", "PyPI llm-sandbox: median / ratio"]
    return table([*head, "bare fork, run, wait", "bare, forked ahead", "n"], rows)


def rates(results: Results) -> str:
    rows = []
    for title, found in results["rates"].items():
        shown = [f"{found[key]:g}" if key in found else NOT_MEASURED for key in ("ours", "docker", "peer")]
        rows.append([title, *shown, f"{found['rounds']} x {found['runs']}"])
    return table(["runs a second", "ours", "docker exec", "PyPI llm-sandbox", "rounds x runs"], rows)


def sizes(results: Results) -> str:
    def line(title: str, found: Results | None) -> list[str]:
        shown = [found.get(key) if found else None for key in ("mb", "anonymous_mb", "files_mb")]
        return [title, *(NOT_MEASURED if figure is None else f"{figure:g} MB" for figure in shown)]

    names = {"idle": "ours, idle and warm", "hibernated": "ours, hibernated"}
    names |= {"docker": "docker exec, idle (runs `sleep`)", "peer": "PyPI llm-sandbox, idle (runs `sleep`)"}
    rows = [line(title, results["memory"].get(key)) for key, title in names.items()]
    return table(["memory of a session's container", "in use", "of it anonymous", "of it files"], rows)


def single(results: Results) -> Iterator[str]:
    big, overhead, asleep = results["big_files"], results["overhead"], results["memory"].get("hibernated")
    if big:
        yield (
            f"100 MB file: upload {big['upload_mb_s']:g} MB/s from the line written to the answer "
            f"({big['upload_with_client_mb_s']:g} with the client's own base64 and JSON), download over HTTP "
            f"{big['download_mb_s']:g} MB/s (n = {big['n']})"
        )
    yield f"a call that wakes a hibernated session: {ms(asleep['wake_ms']) if asleep else NOT_MEASURED}"
    server, client, coarse = (overhead.get(key) for key in ("server_ms", "client_ms", "coarse_ms"))
    yield f"the server's own part of a print, call_us - agent_us: {ms(server)}"
    yield f"all but the agent's part of it, client's time - agent_us: {ms(client)}"
    yield f"client's time - duration_ms, which has whole milliseconds only: {ms(coarse)}"


def verdict(found: float | None, holds: bool) -> str:
    return "not measured" if found is None else "**met**" if holds else "**missed**"


def targets(results: Results) -> str:
    rows = []
    for row, limit, factor in LATENCY_TARGETS:
        found = median(results, row, "ours")
        rows.append([ROWS[row], f"<= {limit} ms", ms(found), verdict(found, (found or 0) <= limit)])
        for key, name in OTHERS.items():
            faster = ratio(results, row, key)
            shown, holds = times(faster) if faster else NOT_MEASURED, (faster or 0) >= factor
            rows.append([f"{ROWS[row]}, against {name}", f">= {factor}x", shown, verdict(faster, holds)])
    for row, limit in FIRST_TARGETS:
        found = median(results, row, "ours")
        rows.append([ROWS[row], f"<= {limit} ms", ms(found), verdict(found, (found or 0) <= limit)])
    for key, title, limit in MEMORY_TARGETS:
        size = results["memory"].get(key)
        found = size["mb"] if size else None
        shown = NOT_MEASURED if found is None else f"{found:g} MB"
        rows.append([title, f"<= {limit} MB", shown, verdict(found, (found or 0) <= limit)])
    return table(["target", "wanted", "measured", ""], rows)


def heading(results: Results) -> Iterator[str]:
    machine, docker = results["machine"], results["docker"]
    yield (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, Linux {machine['kernel']}  "
    )
    yield f"Docker: engine {docker['engine']} (API {docker['api']}), client {docker['client']}, {docker['host']}  "
    yield f"Date: {results['date']}  "
    yield f"Command: `{results['command']}`  "
    yield f"Image: {results['image']}"


def markdown(results: Results) -> str:
    parts = ["# Benchmark\n", "\n".join(heading(results)) + "\n"]
    settings = [f"- **{name}**: {'; '.join(lines)}" for name, lines in results["settings"].items()]
    parts.append("\n".join(settings) + "\n")
    parts.append(f"{results['method']}\n")
    parts += [latency(results), rates(results), sizes(results)]
    parts.append("\n".join(f"- {line}" for line in single(results)) + "\n")
    if results["notes"]:
        parts.append("Notes:\n\n" + "\n".join(f"- {note}" for note in results["notes"]) + "\n")
    parts += ["## Targets\n", targets(results)]
    return "\n".join(parts)
