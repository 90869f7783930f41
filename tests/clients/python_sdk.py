"""The job with the official Python SDK, in both generations of the protocol; cells; and who may come in.

    python_sdk.py stdio <command>
    python_sdk.py http <open address> <guarded address>

A line for each check on stdout, `ok` or `FAIL`, which run.sh counts.
"""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import httpx2
from jsonschema import Draft7Validator, Draft202012Validator
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.extension import ClientExtension
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Tool

from cells import is_shared, whole_notebook
from job import STEPS, TEXTS, TOOLS, answer_of, as_json, equal, expect, fetch, refusal, take
from tasks import Tasks, of_long_runs

CALL_LIMIT_S = 60
LEAVES_WITHIN_S = 1.9  # after 2 s the client sends a signal
# Clients in use lose references and unions.
PLAIN = {"type", "description", "default", "enum", "properties", "required", "additionalProperties", "items"}
PLAIN |= {"minimum", "maximum", "minLength", "maxLength", "pattern"}
SESSIONLESS = "2026-07-28"
ERAS = [("legacy", "2025-11-25"), ("auto", SESSIONLESS)]
# Tokens that the guarded server knows.
ANN, BEN = (os.environ[name] for name in ("ANN_TOKEN", "BEN_TOKEN"))


@dataclass
class Place:
    """The address of a server, or the command that starts it."""

    name: str
    command: str = ""
    url: str = ""
    token: str = ""


def places(arguments: list[str]) -> list[Place]:
    """The servers that the command line names."""
    transport, *at = arguments
    if transport == "stdio":
        return [Place("stdio", command=os.path.abspath(at[0]))]
    return [Place("HTTP", url=at[0]), Place("HTTP with a token", url=at[1], token=ANN)]


class Checks:
    def __init__(self, client: str) -> None:
        self.client = client

    async def say(self, sentence: str, promise: Callable[[], Awaitable[object]]) -> bool:
        """Returns whether it held."""
        try:
            await promise()
        except Exception as error:
            why = f"{type(error).__name__}: {causes(error)}"[:2000].split("\n")
            print(f"FAIL {self.client}: {sentence}", *why, sep="\n     ", flush=True)
            return False
        print(f"ok   {self.client}: {sentence}", flush=True)
        return True


def causes(error: BaseException) -> str:
    """The error's message, or the messages of all errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        return " and ".join(causes(inner) for inner in error.exceptions)
    return f"{error}"


@asynccontextmanager
async def connected(
    place: Place, mode: str, statuses: list[int] | None = None, extensions: Sequence[ClientExtension] = ()
) -> AsyncIterator[Client]:
    """A client of the server at this place; over HTTP, with the statuses of the answers."""
    options = {"mode": mode, "read_timeout_seconds": CALL_LIMIT_S, "extensions": extensions}

    async def note(response: httpx2.Response) -> None:
        if statuses is not None:
            statuses.append(response.status_code)

    if place.url:
        headers = {"Authorization": f"Bearer {place.token}"} if place.token else {}
        timeout = httpx2.Timeout(30, read=300)
        hooks = {"response": [note]}
        async with httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False, event_hooks=hooks) as http:
            transport = streamable_http_client(place.url, http_client=http)
            async with Client(transport, **options) as client:
                yield client
        return
    # No .env file of this host counts.
    server = StdioServerParameters(command=place.command, cwd=tempfile.gettempdir())
    with open(os.devnull, "w") as nowhere:
        transport = stdio_client(server, errlog=nowhere)
        async with Client(transport, **options) as client:
            yield client


async def validate_tool(tool: Tool) -> None:
    for kind, schema in (("input", tool.input_schema), ("output", tool.output_schema or {})):
        expect(schema.get("type") == "object", f"the {kind} schema describes an object")
        for dialect in (Draft7Validator, Draft202012Validator):
            dialect.check_schema(schema)
        plain(schema, kind)


def plain(schema: Any, at: str) -> None:
    expect(isinstance(schema, dict), f"{at} is a schema, not {schema}")
    expect(isinstance(schema.get("type"), str), f"{at} has one type, not {schema.get('type')}")
    expect(schema.keys() <= PLAIN, f"{at} uses {schema.keys() - PLAIN}")
    for name, inner in schema.get("properties", {}).items():
        plain(inner, f"{at}.{name}")
    if schema["type"] == "array":
        plain(schema.get("items"), f"{at}[]")
    if schema["type"] == "object":
        # The server checks arguments; the list of tools omits parts of the schemas.
        expect(schema.get("additionalProperties") in (False, {"type": "string"}) or at.startswith("input"), f"{at} is closed")


async def whole_job(checks: Checks, client: Client, version: str) -> None:
    tools: list[Tool] = []

    async def speak() -> None:
        equal(client.protocol_version, version)

    async def list_tools() -> None:
        tools.extend((await client.list_tools()).tools)
        equal(sorted(tool.name for tool in tools), TOOLS)

    await checks.say(f"the protocol is {version}", speak)
    complete = await checks.say("all tools are listed", list_tools)
    for tool in tools:
        await checks.say(f"the schemas of {tool.name} are valid and plain", partial(validate_tool, tool))
    schemas = {tool.name: tool.output_schema or {} for tool in tools}
    job = dict(TEXTS)
    for step in STEPS if complete else []:
        await checks.say(step["sentence"], partial(take, step, job, client, schemas))


async def with_client(checks: Checks, place: Place, mode: str, version: str) -> None:
    async def session() -> None:
        async with connected(place, mode) as client:
            await whole_job(checks, client, version)
            closing = time.perf_counter()
        took = time.perf_counter() - closing
        expect(took < LEAVES_WITHIN_S, f"it took {took:.1f} s to leave")

    leaves = "the server leaves when it closes" if place.command else "closes"
    await checks.say(f"the client connects, and {leaves}", session)


async def turned_away(place: Place, mode: str) -> None:
    statuses: list[int] = []
    try:
        async with connected(place, mode, statuses) as client:
            await client.list_tools()
    except Exception:
        # The client itself keeps the status to itself.
        equal(set(statuses), {401})
        return
    expect(False, "it was not refused")


async def ours_alone(place: Place, mode: str) -> None:
    """A client cannot see the session of another client."""
    other = Place(place.name, url=place.url, token=BEN)
    async with connected(place, mode) as ann, connected(other, mode) as ben:
        code = 'open("hers.txt", "w").write("private")'
        answer = answer_of(as_json(await ann.call_tool("run_python", {"code": code}))).answer
        session = {"session_id": answer["session_id"]}
        uri = f"sandbox:///{session['session_id']}/hers.txt"
        for tool, give in (
            ("upload_file", {"filename": "mine.txt", "text": "planted"}),
            ("run_python", {"code": "print(open('hers.txt').read())"}),
            ("list_artifacts", {}),
            ("read_artifact", {"path": "hers.txt"}),
            ("close_session", {}),
        ):
            equal(refusal(as_json(await ben.call_tool(tool, {**session, **give})))["error"], "session_not_found")
        for client, seen in ((ann, True), (ben, False)):
            listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
            equal(uri in listed, seen)
        try:
            await ben.read_resource(uri)
            expect(False, "another's file was read")
        except MCPError as error:
            expect(f"There is no file {uri}" in str(error), error)
        url = answer["artifacts"][0]["download_url"]
        bare = url.split("?")[0]
        asked = [(url, ""), (bare, ""), (bare, BEN), (bare, ANN)]
        statuses = [(await anyio.to_thread.run_sync(fetch, url, None, token)).status for url, token in asked]
        equal(statuses, [200, 401, 404, 200])
        answer_of(as_json(await ann.call_tool("close_session", session)))


def named(place: Place) -> Place:
    """Returns the place with a workspace that no other test uses."""
    return replace(place, url=f"{place.url}?workspace=python-{uuid.uuid4()}")


async def cells(checks: Checks, place: Place, mode: str, version: str) -> None:
    """The cells in the workspace that the client has there."""

    async def session() -> None:
        # The sessionless generation has one for each token, which others at work here would use as well.
        at = named(place) if place.url and version == SESSIONLESS else place
        async with connected(at, mode) as client:
            await whole_notebook(client, checks.say)

    await checks.say("the client connects for cells, and closes", session)


async def long_runs(place: Place, mode: str) -> None:
    tasks = Tasks()
    async with connected(named(place) if place.url else place, mode, extensions=[tasks]) as client:
        await of_long_runs(client, tasks)


async def workspaces(checks: Checks, place: Place, mode: str, version: str) -> None:
    """Checks which clients share a workspace. The place must require a token."""

    async def reaches(first: Place, second: Place, wanted: bool) -> None:
        async with connected(first, mode) as one, connected(second, mode) as other:
            equal(await is_shared(one, other, f"x_{uuid.uuid4().hex}"), wanted)

    # All connections with one token share the workspace without a name; another client here has Ann's token.
    ben = replace(place, token=BEN)
    shared = named(place)
    for sentence, first, second, wanted in (
        ("two connections with one token and nothing else share their variables", ben, ben, True)
        if version == SESSIONLESS
        else ("two MCP sessions with one token do not share variables", ben, ben, False),
        ("two connections with one ?workspace= share their variables", shared, shared, True),
        ("two ?workspace= of one token do not share variables", named(place), named(place), False),
        ("two tokens with one ?workspace= do not share variables", shared, replace(shared, token=BEN), False),
    ):
        await checks.say(sentence, partial(reaches, first, second, wanted))


async def main() -> None:
    for place in places(sys.argv[1:]):
        for mode, version in ERAS:
            checks = Checks(f"Python, {mode}, {place.name}")
            await with_client(checks, place, mode, version)
            if place.token:
                for who, token in (("without a token", ""), ("with a wrong token", f"{ANN}x")):
                    stranger = Place(place.name, url=place.url, token=token)
                    await checks.say(f"a client {who} hears 401", partial(turned_away, stranger, mode))
                await checks.say("another's session and files are refused", partial(ours_alone, place, mode))
            if version == SESSIONLESS and not place.token:
                sentence = "long runs are tasks, whose results the client fetches"
                await checks.say(sentence, partial(long_runs, place, mode))
            if not place.url or place.token:
                await cells(checks, place, mode, version)
            if place.token:
                await workspaces(checks, place, mode, version)


if __name__ == "__main__":
    anyio.run(main)
