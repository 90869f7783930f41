"""Cells in a workspace, for any client: cells.json is what is called and what is answered, here and in cells.mjs.

No call names a session, so the workspace is the one that the way of connecting gives.
"""

import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from jsonschema import Draft202012Validator
from mcp import Client

from job import Json, Reply, answer_of, as_json, decoded, equal, expect, fetch, is_as_wanted, png_size, refusal

Say: TypeAlias = Callable[[str, Callable[[], Awaitable[object]]], Awaitable[bool]]

# The keys of a step: `is` has fields of the answer, `absent` fields that it must not have, `holds` parts of its texts,
# `charts` the files that come as images, too; `refused` is the code of an error.
ENGINE = os.environ.get("SANDBOX_ENGINE", "docker")
STEPS: list[Json] = [
    step
    for step in json.loads(Path(__file__).with_name("cells.json").read_text())
    if step.get("only", ENGINE) == ENGINE != step.get("unless")
]
ENDLESS = """
x = "cancelled"
print("at work", flush=True)
while True: pass
"""


async def call(client: Client, tool: str, **give: Any) -> Json:
    """The JSON of a successful answer."""
    return answer_of(as_json(await client.call_tool(tool, give))).answer


async def whole_notebook(client: Client, say: Say) -> None:
    schemas = {tool.name: tool.output_schema or {} for tool in (await client.list_tools()).tools}
    session: Json = {}
    for step in STEPS:
        await say(f"cells: {step['sentence']}", partial(do, step, client, schemas, session))
    await say("cells: a cell that is cancelled is rolled back", partial(cancelled, client))
    await say("cells: the workspace is closed as any session is", partial(destroyed, client, session))


async def do(step: Json, client: Client, schemas: dict[str, Json], session: Json) -> None:
    """Takes one step; raises if its result is not as promised. The first one fills in the session."""
    tool = step["tool"]
    # The one tool that has no workspace of its own accord.
    give = {**session, **step["give"]} if tool == "run_python" else step["give"]
    result = as_json(await client.call_tool(tool, give))
    if "refused" in step:
        equal(refusal(result)["error"], step["refused"])
        return
    reply = answer_of(result)
    answer = reply.answer
    Draft202012Validator(schemas[tool]).validate(answer)
    session.setdefault("session_id", answer["session_id"])
    equal(answer["session_id"], session["session_id"], "it is the same workspace")
    is_as_wanted(answer, step)
    await charts(step.get("charts", []), reply)


async def charts(names: list[str], reply: Reply) -> None:
    made = reply.answer.get("artifacts", [])
    session_id = reply.answer["session_id"]
    equal([(item["filename"], item["mime_type"]) for item in made], [(name, "image/png") for name in names])
    equal([link["uri"] for link in reply.links], [f"sandbox:///{session_id}/{name}" for name in names])
    equal([image["mimeType"] for image in reply.images], ["image/png"] * len(names))
    for item, image in zip(made, reply.images):
        width, height = png_size(decoded(image["data"]))
        expect(width > 300 and height > 200, f"{width} by {height}")
        file = await anyio.to_thread.run_sync(fetch, item["download_url"])
        equal((file.status, file.content_type), (200, "image/png"))
        png_size(file.body)


async def cancelled(client: Client) -> None:
    await call(client, "execute_code", code="x = 'before'")
    with anyio.CancelScope() as scope:

        async def hear(_progress: float, _total: float | None, message: str | None) -> None:
            if (message or "").endswith("at work"):
                scope.cancel()

        await client.call_tool("execute_code", {"code": ENDLESS}, progress_callback=hear)
    expect(scope.cancelled_caught, "the call was cancelled")
    answer = await call(client, "execute_code", code="x")
    equal((answer.get("result"), answer.get("new_workspace")), ("'before'", None))


async def destroyed(client: Client, session: Json) -> None:
    equal((await call(client, "destroy_session", **session))["status"], "destroyed")


async def is_shared(one: Client, other: Client, variable: str) -> bool:
    """Whether the second client has a variable of the first; closes what they ran in."""
    made = await call(one, "execute_code", code=f"{variable} = 20")
    seen = await call(other, "execute_code", code=f"{variable} + 22")
    again = await call(one, "execute_code", code=f"{variable} + 1")
    equal((again.get("result"), again["session_id"]), ("21", made["session_id"]), "the first still has it")
    shared = seen.get("result") == "42"
    equal(seen["session_id"] == made["session_id"], shared, seen)
    if not shared:
        expect(f"name '{variable}' is not defined" in seen["stderr"], seen)
        await call(other, "close_session", session_id=seen["session_id"])
    # There is room for ten, also for those of other clients.
    await call(one, "close_session", session_id=made["session_id"])
    return shared
