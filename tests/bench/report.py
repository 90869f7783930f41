"""Writes figures into pages: results in, Markdown out.

    python3 tests/bench/report.py [--check]

writes docs/performance.md and the rows of README again from out/results.json, as `run.sh --write` does after a
measurement; with --check it only says whether they agree with the results.
"""

import json
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module
from os.path import relpath
from pathlib import Path
from types import ModuleType
from typing import Any

OUT = Path(__file__).resolve().parent / "out"
ROOT = next(folder for folder in OUT.parents if (folder / "docs/measured.py").exists())
PAGE = "docs/performance.md"

# The results of programs that are measured apart from the other figures of the page, in its order.
APART = [OUT / "output.json", OUT / "calls.json"]

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
    """The other's median divided by ours."""
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


def heading(results: Results) -> Iterator[str]:
    machine, docker = results["machine"], results["docker"]
    yield (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, Linux {machine['kernel']}  "
    )
    yield f"Docker: engine {docker['engine']} (API {docker['api']}), client {docker['client']}, {docker['host']}  "
    yield f"Date: {results['date']}  "
    yield f"Command: `{results['command']}`  "
    yield f"Image: {results['image']}"


def details(results: Results) -> list[str]:
    settings = [f"- **{name}**: {'; '.join(lines)}" for name, lines in results["settings"].items()]
    parts = ["\n".join(settings) + "\n", f"{results['method']}\n"]
    parts += [latency(results), rates(results), sizes(results)]
    parts.append("\n".join(f"- {line}" for line in single(results)) + "\n")
    if results["notes"]:
        parts.append("Notes:\n\n" + "\n".join(f"- {note}" for note in results["notes"]) + "\n")
    return parts


def markdown(results: Results) -> str:
    """All figures, for the person who has measured them."""
    return "\n".join(["# Benchmark\n", "\n".join(heading(results)) + "\n", *details(results)])


# Titles of rows in the short tables, by the key of what is measured.
SHORT = {
    "print": "`print(2+2)`",
    "pandas": "small pandas",
    "group_by": "group-by over a 20 KB CSV",
    "matplotlib": "matplotlib PNG, with the image in the answer",
    "seaborn": "seaborn PNG, the same",
    "first_pooled": "first call of a new session",
    "first_named": "first call of a new session that has a name",
    "upload": "1 MB upload",
    "download": "10 MB read",
}
FRONT = ["print", "pandas", "matplotlib"]


def whole(figure: float | None) -> str:
    """Milliseconds with the significant digits."""
    if figure is None:
        return NOT_MEASURED
    return f"{figure:.1f} ms" if figure < 10 else f"{figure:,.0f} ms"


def short(results: Results, keys: list[str]) -> str:
    def other(row: str, key: str) -> str:
        factor = ratio(results, row, key)
        return whole(median(results, row, key)) + (f", {times(factor)}" if factor else "")

    rows = [[SHORT[row], whole(median(results, row, "ours")), *(other(row, key) for key in OTHERS)] for row in keys]
    return table(["", "ours", "`docker exec`", "PyPI llm-sandbox, session kept open"], rows)


def costs(results: Results) -> Iterator[str]:
    """Sentences about the results."""
    chart, whole_call = median(results, "matplotlib", "ahead"), median(results, "print", "ours")
    server, client = (results["overhead"].get(key) for key in ("server_ms", "client_ms"))
    big, idle, asleep = results["big_files"], results["memory"].get("idle"), results["memory"].get("hibernated")
    if chart:
        yield f"A chart is matplotlib's own work: a bare process that was forked ahead takes {whole(chart)} for it."
    if server and client:
        yield (
            f"Of a print of {whole(whole_call)}, {whole(client)} are not the agent's and the program's, and "
            f"{whole(server)} of that is the way through server and engine to the container and back."
        )
    if big:
        yield (
            f"A file of 100 MB is uploaded at {big['upload_mb_s']:.0f} MB/s as base64 over stdio, and downloaded at "
            f"{big['download_mb_s']:.0f} MB/s."
        )
    if idle:
        yield (
            f"An idle session has {idle['mb']:.0f} MB, most of it the libraries, and a program that imports them needs "
            "no more."
        )
    if asleep:
        yield (
            f"After [five minutes](settings.md#sandbox_hibernate_after_m) without use it gives that up "
            f"({asleep['mb']:.0f} MB), and a `print` that wakes it takes {whole(asleep['wake_ms'])}."
        )


# The text that is the same for all runs of the benchmark.
METHOD = """
`tests/bench/run.sh` measures it on your machine in ten minutes: in one run and in turns, on the same engine and \
image, under the same limits, with every answer checked. Figures are medians, of the whole call from the message's \
first byte to the answer parsed.
"""
NOTES = """
- Of the 512 MB that a sandbox has by default, a program and its files have about 350; with all its places full of \
files a small program still runs.
- A session without a name comes from a [pool](settings.md#sandbox_pool_size) of sandboxes that wait. For a new \
session `docker run` stands against ours, and the package's own pool against our pool.
- Why warm runs are fast, and what is the same as in a cold one: \
[architecture](architecture.md#how-warm-runs-work).
"""


def page(results: Results) -> str:
    """The page of the documentation."""
    chart = relpath(OUT / "chart.svg", ROOT / "docs")
    sentences = "\n".join(f"- {line}" for line in costs(results))
    parts = [
        "# Performance\n",
        "<!-- Written by tests/bench/run.sh --write. Do not edit. -->\n",
        f"![One call as its client sees it, against docker exec and the PyPI package llm-sandbox]({chart})\n",
        METHOD.replace("\\\n", "").strip() + "\n",
        short(results, list(SHORT)),
        sentences + NOTES.replace("\\\n", "").rstrip() + "\n",
        "## All figures\n",
        "\n".join(heading(results)) + "\n",
        *details(results),
        *(apart(json.loads(path.read_text(encoding="utf-8"))) for path in APART),
    ]
    return "\n".join(parts)


def apart(results: Results) -> str:
    """A section of figures that are measured apart."""
    text = f"{results['text']}: `{results['program']}`, {where(results)}.\n"
    return f"## {results['title']}\n\n{text}\n{table(results['head'], results['rows'])}"


def keep(path: Path, machine: Results, results: Results) -> None:
    """Stores figures that are measured apart, with the date and the machine, and writes the pages."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    stored = {"date": date, "machine": machine} | results
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    write_pages(json.loads((OUT / "results.json").read_text(encoding="utf-8")))


def where(results: Results) -> str:
    machine = results["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {results['date'][:10]}"


def front(results: Results) -> str:
    """The rows of README, with machine and date."""
    return f"{short(results, FRONT)}\nMedians of the whole call as its client sees it; {where(results)}."


def measured() -> ModuleType:
    """The module that writes figures into pages."""
    sys.path.insert(0, str(ROOT / "docs"))
    return import_module("measured")


def write_pages(results: Results) -> None:
    (ROOT / PAGE).write_text(page(results), encoding="utf-8")
    measured().put("README.md", "speed", front(results))


def is_written(results: Results) -> bool:
    """Whether the pages agree with these results."""
    written = (ROOT / PAGE).read_text(encoding="utf-8") == page(results)
    return written and front(results) in (ROOT / "README.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    FOUND = json.loads((OUT / "results.json").read_text(encoding="utf-8"))
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if is_written(FOUND) else f"{PAGE} or README.md is not what the results hold")
    write_pages(FOUND)
