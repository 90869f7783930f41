"""The runs of a workspace, as the notebook and the script that a person downloads.

    notebook.py <address that wants a token>

Jupyter's own nbformat judges the notebook, Python's compiler the script; both are then done again in sandboxes of
their own. A line for each check on stdout, `ok` or `FAIL`, which run.sh counts.
"""

import json
import py_compile
import sys
import tempfile
import uuid
import warnings
from functools import partial
from pathlib import Path

import anyio
import nbformat
from mcp import Client

from cells import ENGINE, call
from job import Json, Reply, decoded, equal, expect, fetch
from python_sdk import ANN, BEN, Checks, Place, connected

CHART = "import matplotlib.pyplot as plt\nplt.plot([1, total])\nprint('drawn')"
LAST = "total + 1"
HAS_SHELL = ENGINE != "wasm"
SHELL = "!echo from a shell\n" if HAS_SHELL else ""
# Each with its language, and what a notebook shows of it: streams, results and pictures.
CELLS: list[tuple[str, str, list[str]]] = [
    ("python", "total = 20\nprint('first', total)", ["stdout"]),
    ("python", "total + 22", ["result"]),
    ("python", "total = 'never'\nprint('before')\n1 / 0", ["stdout", "error"]),
    ("python", "total = 21", []),
    ("python", "total = 0\nwhile True: pass", ["error"]),
    ("python", f"%time print('magic')\n{SHELL}total", ["stdout", "result"]),
    ("python", CHART, ["stdout", "image/png"]),
    ("javascript", "const a = 1\nconsole.log(`a is ${a}`)", ["stdout"]),
    ("bash", "echo $((6 * 7))", ["stdout"]),
    ("bash", "%%html is no command\nexit 3", ["stderr", "error"]),
    ("python", LAST, ["result"]),
]
CELLS = [cell for cell in CELLS if HAS_SHELL or cell[0] != "bash"]
PROGRAM = "print('a program, \"quoted\", and é')"


async def work(client: Client) -> Json:
    """Does all of it, and gives the answer of the last."""
    for language, code, _ in CELLS:
        answer = await call(client, "execute_code", language=language, code=code, timeout=2 if "while" in code else 30)
    await call(client, "run_python", session_id=answer["session_id"], code=PROGRAM)
    return answer


def shown(outputs: list[Json]) -> list[str]:
    """The kinds of a cell's outputs, by names as above."""
    kinds = {"stream": lambda it: it["name"], "execute_result": lambda _: "result", "error": lambda _: "error"}
    return [kinds.get(it["output_type"], lambda it: next(iter(it["data"])))(it) for it in outputs]


def valid(notebook: Json) -> None:
    """By the schema of its version, with nothing that nbformat would mend in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbformat.validate(notebook, relax_add_props=False)
        nbformat.reads(json.dumps(notebook), as_version=4)


async def has_it_all(notebook: Json, picture: bytes) -> None:
    title, *cells, program = notebook["cells"]
    equal((title["cell_type"], len(cells)), ("markdown", len(CELLS)))
    for (language, code, kinds), cell in zip(CELLS, cells):
        lines = [f"# {line}" if "while" in code else line for line in code.split("\n")]
        expect(cell["source"].endswith("\n".join(lines)), cell)
        equal(cell["metadata"]["llm_sandbox"]["language"], language)
        equal(shown(cell["outputs"]), kinds, cell)
    equal((program["source"], program["outputs"][0]["text"]), (PROGRAM, 'a program, "quoted", and é\n'))
    [chart] = [it for cell in cells for it in cell["outputs"] if it["output_type"] == "display_data"]
    expect(decoded(chart["data"]["image/png"]) == picture, "the picture is the file that download_url serves")


def tagged(cell: Json, tag: str) -> bool:
    return tag in cell["metadata"].get("tags", [])


async def notebook_again(client: Client, notebook: Json) -> None:
    """IPython runs all of its cells, as "Run All" does, in a workspace that is new."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    failed = [2, 9] if HAS_SHELL else [2]
    equal([n for n, cell in enumerate(cells) if tagged(cell, "raises-exception")], failed, "what failed")
    equal([n for n, cell in enumerate(cells) if tagged(cell, "skip-execution")], [4], "what was stopped")
    for cell in cells:
        if cell["source"].startswith("%%script") and not HAS_SHELL:
            continue
        answer = await call(client, "execute_code", code=cell["source"])
        ends = "execution_error" if tagged(cell, "raises-exception") else "success"
        equal(answer["status"], ends, answer)
        results = [it["data"]["text/plain"] for it in cell["outputs"] if it["output_type"] == "execute_result"]
        equal([answer["result"]] if "result" in answer else [], results, answer)
        if "%time" not in cell["source"]:
            equal(answer["stdout"], "".join(it["text"] for it in cell["outputs"] if it.get("name") == "stdout"))
    await call(client, "close_session", session_id=answer["session_id"])


async def script_compiles(script: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "again.py")
        path.write_bytes(script)
        py_compile.compile(str(path), doraise=True)


async def script_again(client: Client, script: bytes) -> None:
    answer = await call(client, "run_python", session_id="__stateless__", code=script.decode())
    equal((answer["outcome"], answer["stdout"]), ("ok", 'first 20\nmagic\ndrawn\na program, "quoted", and é\n'), answer)


async def valid_meanwhile(client: Client, base: str) -> None:
    """Before the first run the notebook has no cells; the cell of a run in progress has no outputs."""
    session_id = (await call(client, "upload_file", filename="a.txt", text="a"))["session_id"]
    seen: list[Json] = []

    async def look() -> None:
        url = f"{base}/files/{session_id}/?format=ipynb"
        seen.append(json.loads((await anyio.to_thread.run_sync(fetch, url, None, ANN)).body))

    await look()
    with anyio.CancelScope() as scope:

        async def hear(_progress: float, _total: float | None, message: str | None) -> None:
            if (message or "").endswith("at work") and len(seen) == 1:
                await look()
                scope.cancel()

        give = {"session_id": session_id, "code": "print('at work', flush=True)\nwhile True: pass"}
        await client.call_tool("execute_code", give, progress_callback=hear)
    for notebook in seen:
        valid(notebook)
    equal([len(notebook["cells"]) for notebook in seen], [1, 2])
    equal((seen[1]["cells"][1]["outputs"], tagged(seen[1]["cells"][1], "skip-execution")), ([], True))
    await call(client, "close_session", session_id=session_id)


async def main() -> None:
    [address] = sys.argv[1:]
    base = address.removesuffix("/mcp")
    checks = Checks("Notebook")
    place = Place("HTTP", url=f"{address}?workspace=notebook-{uuid.uuid4()}", token=ANN)
    again = Place("HTTP", url=f"{address}?workspace=again-{uuid.uuid4()}", token=ANN)

    async def get(url: str, token: str = "") -> Reply:
        return await anyio.to_thread.run_sync(fetch, url, None, token)

    async with connected(place, "auto") as client, connected(again, "auto") as other:
        session = {"session_id": (await work(client))["session_id"]}
        files = f"{base}/files/{session['session_id']}"
        picture = (await get(f"{files}/figure_1.png", ANN)).body
        record = await get(f"{files}/?format=ipynb", ANN)
        script = await get(f"{files}/?format=py", ANN)
        notebook = json.loads(record.body)
        page = (await call(client, "list_artifacts", **session))["page_url"]
        told = json.loads((await get(f"{base}/sessions/{session['session_id']}", ANN)).body)

        async def whoever_may(kind: str, url: str, whole: bytes) -> None:
            for signed in (url, f"{page}&format={kind}"):
                reply = await get(signed)
                equal((reply.status, reply.body == whole), (200, True), signed)
            bare = f"{files}/?format={kind}"
            equal([(await get(bare, token)).status for token in ("", BEN, ANN)], [401, 404, 200])

        await checks.say("it is one by nbformat", lambda: anyio.to_thread.run_sync(valid, notebook))
        await checks.say("it is one without a run, and during one", partial(valid_meanwhile, other, base))
        await checks.say("it has all cells with their outputs and the chart", partial(has_it_all, notebook, picture))
        await checks.say("its cells do the same again", partial(notebook_again, other, notebook))
        await checks.say("the script compiles", partial(script_compiles, script.body))
        await checks.say("the script does the same again", partial(script_again, other, script.body))
        for kind, url, whole in (("ipynb", told["notebook_url"], record.body), ("py", told["script_url"], script.body)):
            sentence = f"a person opens {kind} by the address of the page or by its own, without a token; others do not"
            await checks.say(sentence, partial(whoever_may, kind, url, whole))
        await call(client, "close_session", **session)


if __name__ == "__main__":
    anyio.run(main)
