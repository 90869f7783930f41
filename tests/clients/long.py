"""Runs of more than a minute that say nothing all the while, by clients with and without progress.

    long.py http <open address> <guarded address>

A line for each check on stdout, `ok` or `FAIL`, which run.sh counts.
"""

import sys
import time
from functools import partial

import anyio

from job import answer_of, as_json, equal, expect
from python_sdk import ERAS, Checks, Place, connected, places

SECONDS = 65
SILENT = f'import time; time.sleep({SECONDS}); print("done")'
PATIENCE_S = 150


async def run(place: Place, mode: str, listens: bool) -> None:
    news: list[float] = []

    async def hear(progress: float, _total: float | None, _message: str | None) -> None:
        news.append(progress)

    async with connected(place, mode) as client:
        await client.list_tools()
        started = time.perf_counter()
        result = await client.call_tool(
            "run_python", {"code": SILENT}, PATIENCE_S, progress_callback=hear if listens else None
        )
        answer = answer_of(as_json(result)).answer
        equal((answer["outcome"], answer["stdout"]), ("ok", "done\n"))
        expect(time.perf_counter() - started > SECONDS, "it took its time")
        expect(not listens or len(news) > 10, f"progress was heard {len(news)} times")
        await client.call_tool("close_session", {"session_id": answer["session_id"]})


async def main() -> None:
    place = places(sys.argv[1:])[-1]
    async with anyio.create_task_group() as all_at_once:
        for mode, _ in ERAS:
            checks = Checks(f"Python, {mode}, {place.name}")
            for how, listens in (("with progress", True), ("without progress", False)):
                sentence = f"a client that waits hears of a run of {SECONDS} s {how}"
                all_at_once.start_soon(checks.say, sentence, partial(run, place, mode, listens))


if __name__ == "__main__":
    anyio.run(main)
