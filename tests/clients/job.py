"""A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the way.

STEPS is the job; what holds for every answer is below it. job.mjs is the same in JavaScript.
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
from datetime import datetime
from typing import Any, TypeAlias

import anyio
from jsonschema import Draft202012Validator
from mcp import Client, MCPError

Json: TypeAlias = dict[str, Any]

CSV = "channel,spend,revenue\nsearch,120.5,480\nsocial,80,95.25\nCafé,19.5,60\n".encode()
CHART = """
import os
import matplotlib.pyplot as plt
import pandas as pd
data = pd.read_csv("sales.csv")
data.plot.bar(x="channel", y=["spend", "revenue"])
os.makedirs("plots", exist_ok=True)
plt.savefig("plots/chart.png")
print(data["spend"].sum())
"""
BROKEN = """import pandas as pd
print("so far, so good")
pd.read_csv("sales.csv")["cost"].sum()
"""
SPEAKING = 'import time\nfor n in range(4): print("part", n, flush=True); time.sleep(0.7)'
# Says something, and shows whether it is still at work.
ENDLESS = """
import time
print("at work", flush=True)
for beat in range(300):
    with open("/tmp/beat", "w") as file:
        file.write(str(beat))
    time.sleep(0.1)
"""
LOOK = """
import time
from pathlib import Path
def beat():
    path = Path("/tmp/beat")
    return path.exists() and path.read_text()
seen = beat()
time.sleep(0.5)
print("still at work" if beat() != seen else "at rest")
"""
LINES = 'for n in range(20_000): print(f"line {n:06}")'
LINE = "line 010000\n"
CSVS = ["raw/more.csv", "sales.csv"]
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
class Job:
    """What later steps need from earlier ones."""

    session: Json = field(default_factory=dict)
    chart: Json = field(default_factory=dict)
    picture: bytes = b""
    upload_url: str = ""
    run: Json = field(default_factory=dict)

    def uri(self, path: str) -> str:
        return f"sandbox:///{self.session['session_id']}/{path}"


@dataclass
class Reply:
    """The JSON of a tool's answer, its images and links, or what came over HTTP."""

    answer: Json
    images: list[Json] = field(default_factory=list)
    links: list[Json] = field(default_factory=list)
    status: int = 0
    content_type: str = ""
    body: bytes = b""


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def png_size(picture: bytes) -> tuple[int, int]:
    """Width and height of what must be a PNG."""
    equal((picture[:8], picture[-8:-4]), (b"\x89PNG\r\n\x1a\n", b"IEND"))
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def uploaded(reply: Reply, job: Job) -> None:
    expect(re.fullmatch("sess_[0-9a-f]{12}", reply.answer["session_id"]), reply.answer)
    equal((reply.answer["path"], reply.answer["size_bytes"]), ("/mnt/data/sales.csv", len(CSV)))
    job.session = {"session_id": reply.answer["session_id"]}


def addressed(reply: Reply, job: Job) -> None:
    answer = reply.answer
    equal((answer["path"], answer.get("size_bytes")), ("/mnt/data/raw/more.csv", None))
    expect(answer["expires_in_s"] > 0, answer)
    job.upload_url = answer["upload_url"]


def put(reply: Reply, job: Job) -> None:
    answer = json.loads(reply.body)
    equal((reply.status, answer["size_bytes"]), (201, len(CSV)))
    equal(answer["session_id"], job.session["session_id"])


def put_again(reply: Reply, _: Job) -> None:
    equal((reply.status, json.loads(reply.body)["error"]), (409, "file_exists"))


def drawn(reply: Reply, job: Job) -> None:
    answer = reply.answer
    equal((answer["exit_code"], answer["outcome"], answer["stdout"]), (0, "ok", "220.0\n"), answer["stderr"])
    expect(re.fullmatch(r"run_\d{8}T\d{6}Z_[0-9a-f]{4}", answer["run_id"]), answer["run_id"])
    equal([item["path"] for item in answer["artifacts"]], ["/mnt/data/plots/chart.png"])
    job.chart = answer["artifacts"][0]
    equal(job.chart["mime_type"], "image/png")
    equal([image["mimeType"] for image in reply.images], ["image/png"], "the chart comes with the result")
    width, height = png_size(decoded(reply.images[0]["data"]))
    expect(300 < width <= 1024 and height > 200, f"{width} by {height}")
    links = [(link["uri"], link["name"], link["mimeType"]) for link in reply.links]
    equal(links, [(job.uri("plots/chart.png"), "plots/chart.png", "image/png")])


def left_out(reply: Reply, job: Job) -> None:
    equal((len(reply.answer["artifacts"]), reply.images, reply.links), (1, [], []))
    job.chart = reply.answer["artifacts"][0]


def served(reply: Reply, job: Job) -> None:
    equal((reply.status, reply.content_type), (200, "image/png"))
    equal(len(reply.body), job.chart["size_bytes"])
    png_size(reply.body)
    job.picture = reply.body


def failed(reply: Reply, _: Job) -> None:
    answer = reply.answer
    equal((answer["exit_code"], answer["outcome"], answer["artifacts"]), (1, "error", []))
    equal(answer["stdout"], "so far, so good\n")
    for part in ("Traceback (most recent call last)", '["cost"].sum()', "KeyError: 'cost'"):
        expect(part in answer["stderr"], f"{part} in {answer['stderr']}")


def clamped(reply: Reply, _: Job) -> None:
    answer = reply.answer
    equal(answer["stdout"], "1\n")
    equal(answer["notes"], ["timeout_s 0 is less than 1; 1 was used."])


async def heard(client: Client, job: Job) -> None:
    news: list[tuple[float, str]] = []

    async def hear(progress: float, _total: float | None, message: str | None) -> None:
        news.append((progress, message or ""))

    result = await client.call_tool("run_python", {**job.session, "code": SPEAKING}, progress_callback=hear)
    equal(answer_of(as_json(result)).answer["exit_code"], 0)
    expect(any(message.startswith("part ") for _, message in news), news)
    steps = [progress for progress, _ in news]
    equal(steps, sorted(set(steps)), "progress grows")


async def cancelled(client: Client, job: Job) -> None:
    with anyio.CancelScope() as call:

        async def hear(_progress: float, _total: float | None, message: str | None) -> None:
            if message == "at work":
                call.cancel()

        await client.call_tool("run_python", {**job.session, "code": ENDLESS}, progress_callback=hear)
    expect(call.cancelled_caught, "the call was cancelled")
    started = time.perf_counter()
    look = answer_of(as_json(await client.call_tool("run_python", {**job.session, "code": LOOK}))).answer
    took = time.perf_counter() - started
    equal(look["stdout"], "at rest\n", look["stderr"])
    expect(took < USABLE_WITHIN_S, f"it took {took:.1f} s")


def cut(reply: Reply, job: Job) -> None:
    answer = reply.answer
    equal((answer["stdout_truncated"], answer.get("stderr_truncated")), (True, None))
    stdout = answer["stdout"]
    expect(stdout.startswith("line 000000\n") and stdout.endswith("line 019999\n"), "both ends are shown")
    expect(LINE not in stdout, "the middle is left out")
    job.run = {"run_id": answer["run_id"]}


def read_on(reply: Reply, _: Job) -> None:
    equal((reply.answer["text"], reply.answer["total_bytes"]), (LINE, 20_000 * len(LINE)))


async def resources_listed(client: Client, job: Job) -> None:
    every = [resource.model_dump(mode="json", by_alias=True) for resource in (await client.list_resources()).resources]
    ours = [item for item in every if item["uri"].startswith(job.uri(""))]
    charts = [("plots/chart.png", "image/png", job.chart["size_bytes"])]
    csvs = [(name, "text/csv", len(CSV)) for name in CSVS]
    equal([(item["name"], item["mimeType"], item["size"]) for item in ours], charts + csvs)


async def resources_read(client: Client, job: Job) -> None:
    [picture] = (await client.read_resource(job.uri("plots/chart.png"))).contents
    expect(decoded(as_json(picture)["blob"]) == job.picture, "the picture is the file that download_url serves")
    [csv] = (await client.read_resource(job.uri("sales.csv"))).contents
    equal(as_json(csv)["text"], CSV.decode())


async def resource_missed(client: Client, job: Job) -> None:
    try:
        await client.read_resource(job.uri("nothing.png"))
    except MCPError as error:
        expect(f"There is no file {job.uri('nothing.png')}" in str(error), error)
        return
    expect(False, "there is none")


def listed(reply: Reply, job: Job) -> None:
    sizes = [(item["filename"], item["size_bytes"]) for item in reply.answer["artifacts"]]
    equal(sizes, [("plots/chart.png", job.chart["size_bytes"]), *((name, len(CSV)) for name in CSVS)])
    for item in reply.answer["artifacts"]:
        datetime.strptime(item["modified_at"], "%Y-%m-%dT%H:%M:%S%z")


def seen(reply: Reply, job: Job) -> None:
    equal([image["mimeType"] for image in reply.images], ["image/png"])
    expect(decoded(reply.images[0]["data"]) == job.picture, "the image is the file that download_url serves")
    expect("content_base64" not in reply.answer, "content_base64 is absent")


def read_whole(reply: Reply, job: Job) -> None:
    expect(decoded(reply.answer["content_base64"]) == job.picture, "it is the file that download_url serves")


def read_back(reply: Reply, _: Job) -> None:
    equal(reply.answer["mime_type"], "text/csv")
    equal(reply.answer["text"], CSV.decode())


def gone(reply: Reply, _: Job) -> None:
    equal((reply.status, json.loads(reply.body)["error"]), (404, "not_found"))


@dataclass
class Step:
    """A call, in the job's session once there is one, that gets an answer or is refused with a code.

    Or something else that the client can do; or the CSV is put to the address for it; or, with nothing of
    all this, the chart is downloaded.
    """

    sentence: str
    tool: str = ""
    give: Json | Callable[[Job], Json] = field(default_factory=dict)
    use: Callable[[Client, Job], Awaitable[None]] | None = None
    puts: bool = False
    expect: Callable[[Reply, Job], None] = lambda _reply, _job: None
    refused: str = ""


A_CSV = {"filename": "sales.csv", "content_base64": encoded(CSV)}
STEPS = [
    Step("upload_file stores a CSV in a new session", "upload_file", A_CSV, expect=uploaded),
    Step("upload_file does not replace a file unasked", "upload_file", A_CSV, refused="file_exists"),
    Step("upload_file replaces a file when told to", "upload_file", {**A_CSV, "overwrite": True}),
    Step(
        "upload_file refuses what is not base64",
        "upload_file",
        {"filename": "bad.csv", "content_base64": "not base64!"},
        refused="invalid_base64",
    ),
    Step(
        "upload_file refuses a name that leads out of the data area",
        "upload_file",
        {"filename": "../bad.csv", "content_base64": ""},
        refused="invalid_filename",
    ),
    Step(
        "upload_file without content gives an address to put the file to",
        "upload_file",
        {"filename": "raw/more.csv"},
        expect=addressed,
    ),
    Step("whoever has the file puts it to upload_url without a token", puts=True, expect=put),
    Step("upload_url does not replace a file unasked", puts=True, expect=put_again),
    Step(
        "run_python reads the CSV with pandas and draws a chart with matplotlib",
        "run_python",
        {"code": CHART, "timeout_s": 50},
        expect=drawn,
    ),
    Step(
        "run_python leaves the chart out when asked to",
        "run_python",
        {"code": CHART, "inline_images": 0},
        expect=left_out,
    ),
    Step("download_url serves the chart", expect=served),
    Step(
        "run_python gives a Python error as a result, with a traceback that shows the line",
        "run_python",
        {"code": BROKEN},
        expect=failed,
    ),
    Step(
        "run_python notes that a time limit of nothing is not what it used",
        "run_python",
        {"code": "print(1)", "timeout_s": 0},
        expect=clamped,
    ),
    Step("run_python refuses code of nothing", "run_python", {"code": " "}, refused="invalid_argument"),
    Step("progress is heard, with what the program says", use=heard),
    Step("cancelling a call stops its program, and the session is usable at once", use=cancelled),
    Step("run_python shows the ends of a long output", "run_python", {"code": LINES}, expect=cut),
    Step(
        "read_output reads what was left out",
        "read_output",
        lambda job: {**job.run, "offset": 10_000 * len(LINE), "length": len(LINE)},
        expect=read_on,
    ),
    Step("list_artifacts lists the chart and the CSVs with their sizes, sorted", "list_artifacts", expect=listed),
    Step(
        "read_artifact shows the chart as one image block and nowhere else",
        "read_artifact",
        {"path": "/mnt/data/plots/chart.png"},
        expect=seen,
    ),
    Step(
        "read_artifact gives the chart as base64 when asked to",
        "read_artifact",
        {"path": "plots/chart.png", "format": "base64", "length": 100_000},
        expect=read_whole,
    ),
    *(
        Step(f"read_artifact gives {name} back as it was uploaded", "read_artifact", {"path": name}, expect=read_back)
        for name in CSVS
    ),
    Step("the files are resources, with their kinds and sizes", use=resources_listed),
    Step("the resources have the files' content", use=resources_read),
    Step("a resource that is not there is an error that says so", use=resource_missed),
    Step(
        "read_artifact does not know a file that is not there",
        "read_artifact",
        {"path": "nothing.csv"},
        refused="not_found",
    ),
    Step(
        "read_artifact refuses a path outside the data area",
        "read_artifact",
        {"path": "/etc/passwd"},
        refused="invalid_path",
    ),
    Step(
        "close_session ends the session",
        "close_session",
        expect=lambda reply, _: equal(reply.answer["status"], "closed"),
    ),
    Step("close_session does not know a session that is closed", "close_session", refused="session_not_found"),
    Step("download_url is gone with the session", expect=gone),
]


async def do(step: Step, job: Job, client: Client, output_schemas: dict[str, Json]) -> None:
    """One step; raises if it does not go as promised."""
    if step.use:
        await step.use(client, job)
        return
    if not step.tool:
        url, body = (job.upload_url, CSV) if step.puts else (job.chart["download_url"], None)
        step.expect(await anyio.to_thread.run_sync(fetch, url, body), job)
        return
    give = step.give(job) if callable(step.give) else step.give
    result = as_json(await client.call_tool(step.tool, {**job.session, **give}))
    if step.refused:
        equal(refusal(result)["error"], step.refused)
        return
    reply = answer_of(result)
    Draft202012Validator(output_schemas[step.tool]).validate(reply.answer)
    equal(reply.answer["session_id"], job.session.get("session_id", reply.answer["session_id"]))
    step.expect(reply, job)


def as_json(result: Any) -> Json:
    """What the server sent."""
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
