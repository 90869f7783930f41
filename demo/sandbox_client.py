"""The tools of llm-sandbox as a model holds them, with the checks that hold for every answer.

Knows the tools and their promises, not the story that drive.py tells with them. Whatever is not as promised raises
BrokenPromise with a sentence that says what was expected and what was found.
"""

import base64
import json
import re
import struct
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from functools import partial
from typing import Any
from urllib.parse import quote

import anyio
from mcp import Client
from mcp.types import CallToolResult, ImageContent, TextContent

TOOLS = {"upload_file", "run_python", "list_artifacts", "read_artifact", "close_session"}
DOWNLOAD_LIMIT_S = 30
PAGE_BYTES = 300_000  # of a file in base64: what every client takes in one message


class BrokenPromise(Exception):
    """Something was not as the demo expects it."""


def expect(holds: object, promise: str, found: object = None) -> None:
    if not holds:
        raise BrokenPromise(promise if found is None else f"{promise}; found {found!r}")


def expect_equal(found: object, wanted: object, promise: str) -> None:
    if found != wanted:
        raise BrokenPromise(f"{promise}; expected {wanted!r}, found {found!r}")


@dataclass
class Sandbox:
    """One session on one server. The first call opens it, and the id that comes back is passed on from then on."""

    client: Client
    session_id: str | None = None

    async def ask(self, tool: str, **arguments: Any) -> CallToolResult:
        if self.session_id is not None:
            arguments["session_id"] = self.session_id
        return await self.client.call_tool(tool, arguments)

    async def call(self, tool: str, **arguments: Any) -> tuple[dict[str, Any], CallToolResult]:
        """The JSON of a successful answer, and the whole answer."""
        result = await self.ask(tool, **arguments)
        text = [block.text for block in result.content if isinstance(block, TextContent)]
        expect(not result.is_error, f"{tool} succeeds", "\n".join(text))
        data = result.structured_content
        expect(isinstance(data, dict), f"{tool} answers with structuredContent", data)
        expect_equal([json.loads(block) for block in text], [data], f"{tool} gives the same JSON as one text block")
        session = data.get("session_id")
        expect(session, f"{tool} names its session", data)
        expect_equal(session, self.session_id or session, f"{tool} stays in its session")
        self.session_id = session
        return data, result

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The JSON of an answer that must be an error."""
        result = await self.ask(tool, **arguments)
        expect(result.is_error, f"{tool} is refused", result.structured_content)
        text = [block.text for block in result.content if isinstance(block, TextContent)]
        expect(len(text) == len(result.content) == 1, "an error is one text block", result.content)
        error: dict[str, Any] = json.loads(text[0])
        return error

    async def run(self, code: str) -> dict[str, Any]:
        """Any outcome of run_python; a Python error is one of them."""
        run, _ = await self.call("run_python", code=code)
        expect(re.fullmatch(r"run_\d{8}T\d{6}Z_[0-9a-f]{4}", run["run_id"]), "a run_id has its form", run["run_id"])
        return run

    async def run_well(self, code: str) -> dict[str, Any]:
        run = await self.run(code)
        expect_equal((run["exit_code"], run["outcome"]), (0, "ok"), f"the code ends well ({run['stderr']})")
        expect(not run.get("stdout_truncated"), "all that was printed comes back")
        return run

    async def read(self, path: str) -> bytes:
        """A file, byte for byte, all pages of it."""
        content, offset = b"", 0
        while True:
            data, _ = await self.call("read_artifact", path=path, format="base64", offset=offset, length=PAGE_BYTES)
            content += base64.b64decode(data["content_base64"], validate=True)
            if "next_offset" not in data:
                expect_equal(len(content), data["size_bytes"], f"{path} has the size that read_artifact states")
                return content
            offset = data["next_offset"]

    async def look_at(self, path: str) -> tuple[bytes, str | None]:
        """A picture, as the model sees it: one image block, and its bytes nowhere else. And how large it is shown,
        if that is smaller than it is."""
        data, result = await self.call("read_artifact", path=path)
        images = [block for block in result.content if isinstance(block, ImageContent)]
        expect_equal((len(images), len(result.content)), (1, 2), f"{path} comes as one image and one text block")
        expect_equal({images[0].mime_type, data["mime_type"]}, {"image/png"}, f"{path} is announced as image/png")
        expect("content_base64" not in data, f"{path} is not sent a second time as text")
        return base64.b64decode(images[0].data, validate=True), data.get("scaled_to")


def url_of(listed: dict[str, Any], item: dict[str, Any]) -> str:
    """Returns the download URL of a listed file: from its own entry, or from the list's template."""
    if "download_url" in item:
        return str(item["download_url"])
    return str(listed["download_url_template"]).replace("{filename}", quote(item["filename"]))


def artifact(run: dict[str, Any], filename: str) -> dict[str, Any]:
    """Returns the report of a run on one of the files that it made."""
    found = {item["filename"]: item for item in run["artifacts"]}
    expect(filename in found, f"the run reports {filename} as an artifact", sorted(found))
    item: dict[str, Any] = found[filename]
    expect_equal(item["path"], f"/mnt/data/{filename}", f"{filename} lies in /mnt/data")
    expect(item.get("download_url"), f"{filename} has a download URL", item)
    return item


@dataclass
class Download:
    status: int
    headers: Message
    body: bytes


def fetch(url: str) -> Download:
    """GET, without the proxies of the environment: the artifact server is on this host."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=DOWNLOAD_LIMIT_S) as answer:
            return Download(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Download(error.code, error.headers, error.read())


async def download(url: str) -> Download:
    return await anyio.to_thread.run_sync(partial(fetch, url))


def png_size(content: bytes) -> tuple[int, int]:
    expect(content[:8] == b"\x89PNG\r\n\x1a\n" and content[12:16] == b"IHDR", "a chart is a PNG", content[:16])
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def pdf_pages(content: bytes) -> int:
    whole = content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
    expect(whole, "the report is a whole PDF", content[:8])
    return len(re.findall(rb"/Type\s*/Page\b", content))
