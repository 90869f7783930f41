"""A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the way.

job.json is the job, for job.mjs as well, which says what a step may have; what holds for every answer is at the end.
"""

import base64
import json
import re
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from jsonschema import Draft202012Validator
from mcp import Client, MCPError

Json: TypeAlias = dict[str, Any]

_JOB = json.loads(Path(__file__).with_name("job.json").read_text(encoding="utf-8"))
TOOLS: list[str] = _JOB["tools"]
TEXTS: Json = _JOB["texts"]
STEPS: list[Json] = _JOB["steps"]
DOWNLOAD_LIMIT_S = 30
USABLE_WITHIN_S = 10


class BrokenPromise(Exception):
    """Something was not as the job expects it."""


def expect(holds: object, promise: object) -> None:
    if not holds:
        raise BrokenPromise(str(promise))


def equal(found: object, wanted: object, note: object = "") -> None:
    expect(found == wanted, f"expected {wanted!r}, found {found!r} {note}")


@dataclass
class Reply:
    """The JSON of a tool's answer, its images and links, or what came over HTTP."""

    answer: Json
    images: list[Json] = field(default_factory=list)
    links: list[Json] = field(default_factory=list)
    status: int = 0
    content_type: str = ""
    body: bytes = b""


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def png_size(picture: bytes) -> tuple[int, int]:
    """Width and height of what must be a PNG."""
    equal((picture[:8], picture[-8:-4]), (b"\x89PNG\r\n\x1a\n", b"IEND"))
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def at(found: Any, path: str) -> Any:
    """The part of something at this path; None if it has none."""
    for part in path.split("."):
        if isinstance(found, list):
            found = len(found) if part == "length" else found[int(part)] if int(part) < len(found) else None
        else:
            found = (found or {}).get(part)
    return found


def filled(wanted: Any, job: Json) -> Any:
    """The same JSON with what the job knows in the place of each `$name`."""
    def known(name: str) -> Any:
        found = at(job, name)
        expect(found is not None, f"an earlier step gave no {name}")
        return found

    if isinstance(wanted, str):
        name = re.fullmatch(r"\$([\w.]+)", wanted)
        return known(name[1]) if name else re.sub(r"\$(\w+)", lambda name: str(known(name[1])), wanted)
    if isinstance(wanted, dict):
        return {key: filled(value, job) for key, value in wanted.items()}
    return [filled(item, job) for item in wanted] if isinstance(wanted, list) else wanted


def is_as_wanted(found: Any, step: Json) -> None:
    """The expectations of a step for a value, by paths: `is`, `absent`, and the contents of texts and pictures."""
    shown = str(found)[:1000]
    wanted = step.get("is", {})
    equal({path: at(found, path) for path in wanted}, wanted, shown)
    for path in step.get("absent", []):
        expect(path not in found, f"{path} in {shown}")
    for path, parts in step.get("holds", {}).items():
        for part in parts if isinstance(parts, list) else [parts]:
            expect(part in at(found, path), f"{part} in {at(found, path)}")
    for path, pattern in step.get("matches", {}).items():
        expect(re.fullmatch(pattern, str(at(found, path))), f"{path} in {shown}")
    for path in step.get("pictures", []):
        width, height = png_size(decoded(at(found, path)))
        expect(300 < width <= 1024 and height > 200, f"{width} by {height}")


async def heard(client: Client, job: Json) -> None:
    news: list[tuple[float, str]] = []

    async def hear(progress: float, _total: float | None, message: str | None) -> None:
        news.append((progress, message or ""))

    give = {"session_id": job["session_id"], "code": job["speaking"]}
    result = await client.call_tool("run_python", give, progress_callback=hear)
    equal(answer_of(as_json(result)).answer["exit_code"], 0)
    expect(any(message.startswith("part ") for _, message in news), news)
    steps = [progress for progress, _ in news]
    equal(steps, sorted(set(steps)), "progress grows")


async def cancelled(client: Client, job: Json) -> None:
    session = {"session_id": job["session_id"]}
    with anyio.CancelScope() as call:

        async def hear(_progress: float, _total: float | None, message: str | None) -> None:
            if (message or "").endswith("at work"):
                call.cancel()

        await client.call_tool("run_python", {**session, "code": job["endless"]}, progress_callback=hear)
    expect(call.cancelled_caught, "the call was cancelled")
    started = time.perf_counter()
    look = answer_of(as_json(await client.call_tool("run_python", {**session, "code": job["look"]}))).answer
    took = time.perf_counter() - started
    equal(look["stdout"], "at rest\n", look["stderr"])
    expect(took < USABLE_WITHIN_S, f"it took {took:.1f} s")


async def resources(client: Client, job: Json) -> list[Json]:
    """The resources of the job's session."""
    listed = [as_json(resource) for resource in (await client.list_resources()).resources]
    return [item for item in listed if item["uri"].startswith(f"sandbox:///{job['session_id']}/")]


USES: dict[str, Callable[[Client, Json], Awaitable[Any]]] = {
    "heard": heard, "cancelled": cancelled, "resources": resources,
}  # fmt: skip


async def take(step: Json, job: Json, client: Client, output_schemas: dict[str, Json]) -> None:
    """Takes one step; raises if its result is not as promised."""
    step = filled(step, job)
    try:
        found = await outcome(step, job, client, output_schemas)
    except MCPError as error:
        expect("fails" in step and step["fails"] in str(error), error)
        return
    expect("fails" not in step, "it does not fail")
    is_as_wanted(found, step)
    for name, path in step.get("keep", {}).items():
        job[name] = at(found, path)


async def outcome(step: Json, job: Json, client: Client, output_schemas: dict[str, Json]) -> Any:
    """The result of a step."""
    if "use" in step:
        return await USES[step["use"]](client, job)
    if "read" in step:
        return [as_json(content) for content in (await client.read_resource(step["read"])).contents]
    if "tool" not in step:
        url, body = (step["put"], job["csv"].encode()) if "put" in step else (step["get"], None)
        reply = await anyio.to_thread.run_sync(fetch, url, body)
        found = {"status": reply.status, "type": reply.content_type, "size": len(reply.body)}
        json_of = json.loads(reply.body) if reply.content_type == "application/json" else None
        return {**found, "base64": base64.b64encode(reply.body).decode(), "json": json_of}
    session = {"session_id": job["session_id"]} if "session_id" in job else {}
    result = as_json(await client.call_tool(step["tool"], {**session, **step["give"]}))
    if "refused" in step:
        equal(refusal(result)["error"], step["refused"])
        return None
    reply = answer_of(result)
    Draft202012Validator(output_schemas[step["tool"]]).validate(reply.answer)
    equal(reply.answer["session_id"], session.get("session_id", reply.answer["session_id"]))
    return {**reply.answer, "images": reply.images, "links": reply.links}


def as_json(result: Any) -> Json:
    """The messages of the server."""
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def answer_of(result: Json) -> Reply:
    """A successful result, which every client can read in two ways."""
    blocks = result["content"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [block for block in blocks if block["type"] == "image"]
    links = [block for block in blocks if block["type"] == "resource_link"]
    expect(not result.get("isError"), texts)
    equal((len(texts), len(blocks)), (1, 1 + len(images) + len(links)), "one text, images and links only")
    answer = result.get("structuredContent")
    equal(json.loads(texts[0]), answer, "the text block is the JSON of structuredContent")
    expect(isinstance(answer, dict), "structuredContent is an object")
    return Reply(answer or {}, images, links)


def refusal(result: Json) -> Json:
    """The JSON of a result that must be an error."""
    equal(result.get("isError"), True, str(result)[:500])
    equal([block["type"] for block in result["content"]], ["text"], "an error is one text block")
    expect("structuredContent" not in result, "an error has no structuredContent")
    error: Json = json.loads(result["content"][0]["text"])
    expect(isinstance(error["error"], str) and isinstance(error["message"], str), error)
    return error


def fetch(url: str, body: bytes | None = None, token: str = "") -> Reply:
    """GET or PUT, without the proxies of the environment: the file server is on this host."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, body, headers, method="GET" if body is None else "PUT")
    try:
        with opener.open(request, timeout=DOWNLOAD_LIMIT_S) as response:
            return replied(response)
    except urllib.error.HTTPError as error:
        with error:
            return replied(error)


def replied(response: Any) -> Reply:
    return Reply({}, status=response.status, content_type=response.headers.get_content_type(), body=response.read())
