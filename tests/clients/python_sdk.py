"""The job with the official Python SDK, in both generations of the protocol.

A line for each check on stdout, `ok` or `FAIL`, which run.sh counts.
"""

import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from jsonschema import Draft7Validator, Draft202012Validator
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Tool

from job import STEPS, Job, Json, do, equal, expect

CALL_LIMIT_S = 60
LEAVES_WITHIN_S = 1.9  # after 2 s the client sends a signal
TOOLS = ["close_session", "list_artifacts", "read_artifact", "run_python", "upload_file"]
# Clients in use lose references and unions.
PLAIN = {"type", "description", "default", "enum", "properties", "required", "additionalProperties", "items"}
PLAIN |= {"minimum", "maximum", "minLength", "maxLength", "pattern"}


class Checks:
    def __init__(self, client: str) -> None:
        self.client = client

    async def say(self, sentence: str, promise: Callable[[], Awaitable[object]]) -> bool:
        """Returns whether it held."""
        try:
            await promise()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:2000].split("\n")
            print(f"FAIL {self.client}: {sentence}", *why, sep="\n     ", flush=True)
            return False
        print(f"ok   {self.client}: {sentence}", flush=True)
        return True


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
        expect(schema.get("additionalProperties") is False, f"{at} is closed")


async def whole_job(checks: Checks, client: Client, version: str) -> None:
    tools: list[Tool] = []

    async def speak() -> None:
        equal(client.protocol_version, version)

    async def list_tools() -> None:
        tools.extend((await client.list_tools()).tools)
        equal(sorted(tool.name for tool in tools), TOOLS)

    async def call(tool: str, arguments: Json) -> Json:
        result = await client.call_tool(tool, arguments)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    await checks.say(f"the protocol is {version}", speak)
    complete = await checks.say("the five tools are listed", list_tools)
    for tool in tools:
        await checks.say(f"the schemas of {tool.name} are valid and plain", partial(validate_tool, tool))
    schemas = {tool.name: tool.output_schema or {} for tool in tools}
    job = Job()
    for step in STEPS if complete else []:
        await checks.say(step.sentence, partial(do, step, job, call, schemas))


async def with_client(name: str, command: str, mode: str, version: str) -> None:
    checks = Checks(name)
    # No .env file of this host counts.
    server = StdioServerParameters(command=command, cwd=tempfile.gettempdir())

    async def session() -> None:
        with open(os.devnull, "w") as nowhere:
            transport = stdio_client(server, errlog=nowhere)
            async with Client(transport, mode=mode, read_timeout_seconds=CALL_LIMIT_S) as client:
                await whole_job(checks, client, version)
                closing = time.perf_counter()
        took = time.perf_counter() - closing
        expect(took < LEAVES_WITHIN_S, f"it took {took:.1f} s to leave")

    await checks.say("the client connects, and the server leaves when it closes", session)


async def main() -> None:
    command = os.path.abspath(sys.argv[1])
    await with_client("Python, legacy", command, "legacy", "2025-11-25")
    await with_client("Python, auto", command, "auto", "2026-07-28")


if __name__ == "__main__":
    anyio.run(main)
