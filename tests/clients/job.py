"""A whole job for any client: an export goes in, a chart comes out, and every kind of mistake on the way.

STEPS is the job; what holds for every answer is below it. job.mjs is the same in JavaScript.
"""

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import anyio
from jsonschema import Draft202012Validator

Json: TypeAlias = dict[str, Any]
Call: TypeAlias = Callable[[str, Json], Awaitable[Json]]

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
DOWNLOAD_LIMIT_S = 30


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


@dataclass
class Reply:
    """The JSON of a tool's answer and its images, or of a download and its file."""

    answer: Json
    images: list[Json] = field(default_factory=list)
    status: int = 0
    content_type: str = ""
    body: bytes = b""


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def uploaded(reply: Reply, job: Job) -> None:
    expect(re.fullmatch("sess_[0-9a-f]{12}", reply.answer["session_id"]), reply.answer)
    equal((reply.answer["path"], reply.answer["size_bytes"]), ("/mnt/data/sales.csv", len(CSV)))
    job.session = {"session_id": reply.answer["session_id"]}


def drawn(reply: Reply, job: Job) -> None:
    answer = reply.answer
    equal((answer["exit_code"], answer["outcome"], answer["stdout"]), (0, "ok", "220.0\n"), answer["stderr"])
    expect(re.fullmatch(r"run_\d{8}T\d{6}Z_[0-9a-f]{4}", answer["run_id"]), answer["run_id"])
    equal([item["path"] for item in answer["artifacts"]], ["/mnt/data/plots/chart.png"])
    job.chart = answer["artifacts"][0]
    equal(job.chart["mime_type"], "image/png")


def served(reply: Reply, job: Job) -> None:
    equal((reply.status, reply.content_type), (200, "image/png"))
    equal((len(reply.body), reply.body[1:4]), (job.chart["size_bytes"], b"PNG"))
    job.picture = reply.body


def failed(reply: Reply, _: Job) -> None:
    answer = reply.answer
    equal((answer["exit_code"], answer["outcome"], answer["artifacts"]), (1, "error", []))
    equal(answer["stdout"], "so far, so good\n")
    for part in ("Traceback (most recent call last)", '["cost"].sum()', "KeyError: 'cost'"):
        expect(part in answer["stderr"], f"{part} in {answer['stderr']}")


def listed(reply: Reply, job: Job) -> None:
    sizes = [(item["filename"], item["size_bytes"]) for item in reply.answer["artifacts"]]
    equal(sizes, [("plots/chart.png", job.chart["size_bytes"]), ("sales.csv", len(CSV))])
    for item in reply.answer["artifacts"]:
        datetime.strptime(item["modified_at"], "%Y-%m-%dT%H:%M:%S.%f%z")


def seen(reply: Reply, job: Job) -> None:
    equal([image["mimeType"] for image in reply.images], ["image/png"])
    expect(decoded(reply.images[0]["data"]) == job.picture, "the image is the file that download_url serves")
    expect("content_base64" not in reply.answer, "content_base64 is absent")


def read_whole(reply: Reply, job: Job) -> None:
    expect(decoded(reply.answer["content_base64"]) == job.picture, "it is the file that download_url serves")


def read_back(reply: Reply, _: Job) -> None:
    equal((reply.answer["path"], reply.answer["mime_type"]), ("/mnt/data/sales.csv", "text/csv"))
    equal(decoded(reply.answer["content_base64"]), CSV)


def gone(reply: Reply, _: Job) -> None:
    equal((reply.status, json.loads(reply.body)["error"]), (404, "not_found"))


@dataclass
class Step:
    """A call, in the job's session once there is one, that gets an answer or is refused with a code.

    Without a tool, the chart is downloaded.
    """

    sentence: str
    tool: str = ""
    give: Json = field(default_factory=dict)
    expect: Callable[[Reply, Job], None] = lambda _reply, _job: None
    refused: str = ""


A_CSV = {"filename": "sales.csv", "content_base64": encoded(CSV)}
STEPS = [
    Step("upload_file stores a CSV in a new session", "upload_file", A_CSV, uploaded),
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
        "run_python reads the CSV with pandas and draws a chart with matplotlib",
        "run_python",
        {"code": CHART, "timeout_s": 50},
        drawn,
    ),
    Step("download_url serves the chart", expect=served),
    Step(
        "run_python gives a Python error as a result, with a traceback that shows the line",
        "run_python",
        {"code": BROKEN},
        failed,
    ),
    Step(
        "run_python refuses a time limit of nothing",
        "run_python",
        {"code": "print(1)", "timeout_s": 0},
        refused="invalid_argument",
    ),
    Step("list_artifacts lists the chart and the CSV with their sizes, sorted", "list_artifacts", {}, listed),
    Step(
        "read_artifact shows the chart as one image block and nowhere else",
        "read_artifact",
        {"path": "/mnt/data/plots/chart.png"},
        seen,
    ),
    Step(
        "read_artifact gives the chart as base64 when asked to",
        "read_artifact",
        {"path": "plots/chart.png", "format": "base64"},
        read_whole,
    ),
    Step("read_artifact gives the CSV back as it was uploaded", "read_artifact", {"path": "sales.csv"}, read_back),
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
        {},
        lambda reply, _: equal(reply.answer["status"], "closed"),
    ),
    Step("close_session does not know a session that is closed", "close_session", refused="session_not_found"),
    Step("download_url is gone with the session", expect=gone),
]


async def do(step: Step, job: Job, call: Call, output_schemas: dict[str, Json]) -> None:
    """One step; raises if it does not go as promised. `call` gives a tool's result as it is in JSON."""
    if not step.tool:
        step.expect(await anyio.to_thread.run_sync(download, job.chart["download_url"]), job)
        return
    result = await call(step.tool, {**job.session, **step.give})
    if step.refused:
        equal(refusal(result)["error"], step.refused)
        return
    reply = answer_of(result)
    Draft202012Validator(output_schemas[step.tool]).validate(reply.answer)
    equal(reply.answer["session_id"], job.session.get("session_id", reply.answer["session_id"]))
    step.expect(reply, job)


def answer_of(result: Json) -> Reply:
    """A successful result, which every client can read in two ways."""
    blocks = result["content"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [block for block in blocks if block["type"] == "image"]
    expect(not result.get("isError"), texts)
    equal((len(texts), len(blocks)), (1, 1 + len(images)), "blocks: one of text and images only")
    answer = result.get("structuredContent")
    equal(json.loads(texts[0]), answer, "the text block is the JSON of structuredContent")
    expect(isinstance(answer, dict), "structuredContent is an object")
    return Reply(answer or {}, images)


def refusal(result: Json) -> Json:
    """The JSON of a result that must be an error."""
    equal(result.get("isError"), True, str(result)[:500])
    equal([block["type"] for block in result["content"]], ["text"], "an error is one text block")
    expect("structuredContent" not in result, "an error has no structuredContent")
    error: Json = json.loads(result["content"][0]["text"])
    expect(isinstance(error["error"], str) and isinstance(error["message"], str), error)
    return error


def download(url: str) -> Reply:
    """GET, without the proxies of the environment: the file server is on this host."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=DOWNLOAD_LIMIT_S) as response:
            return Reply({}, [], response.status, response.headers.get_content_type(), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply({}, [], error.code, error.headers.get_content_type(), error.read())
