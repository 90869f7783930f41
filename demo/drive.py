#!/usr/bin/env python3
"""A model's working day with llm-sandbox: the real binary over stdio, driven by the official MCP client.

It plays the part of the model: uploads an export, makes an honest mistake, reads the traceback, fixes the code, looks
at the charts, writes a report and fetches it. The code that it sends is in analysis/, one file for each call.

Every step states what it expects, and the first expectation that does not hold ends the demo with exit code 1. So this
is also a test of the promises that a client relies on.
"""

import argparse
import base64
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client

import make_csv
from sandbox_client import TOOLS, BrokenPromise, Sandbox, artifact, download, expect, expect_equal, pdf_pages, png_size, url_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = HERE / "out"
EXIT_CODE = OUT / "server.exit-code"
EXPORTS = OUT / "exports"
MIN_ROWS, MIN_CHARTS, MIN_PAGES = 20_000, 4, 3
CALL_LIMIT_S = 120  # far more than any step needs; a server that does not answer must not hang the demo

# The names of defects in make_csv, and the names under which the analysis reports them.
PLANTED = {
    "duplicate_row": "Duplicate rows",
    "second_date_format": "Dates as DD/MM/YYYY",
    "untidy_channel": "Channel spelt differently",
    "currency_text": "Amounts typed as $1,234.50",
    "negative_spend": "Negative spend",
    "missing_spend": "No spend",
    "missing_conversions": "No conversions",
    "missing_revenue": "No revenue",
    "missing_region": "No region",
    "rows": "Rows in the file",
}


class Screen:
    """Numbered steps, each with its time; colours only on a terminal that wants them."""

    def __init__(self) -> None:
        self.colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.current = "0. Start"
        self.steps = 0

    def paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colours else text

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.steps += 1
        self.current = f"{self.steps}. {name}"
        print(f"\n{self.paint('1', self.current)}", flush=True)
        started = time.perf_counter()
        yield
        elapsed_ms = (time.perf_counter() - started) * 1000
        print(self.paint("32", f"   done in {elapsed_ms:,.0f} ms"), flush=True)

    def say(self, text: str) -> None:
        print(f"   {text}", flush=True)

    def quote(self, text: str, mark: str = "|", code: str = "2") -> None:
        """Output of a program, as it came."""
        for line in text.rstrip("\n").split("\n"):
            print("   " + self.paint(code, f"{mark} {line}".rstrip()), flush=True)

    def show_run(self, run: dict[str, Any]) -> None:
        self.say(f"exit code {run['exit_code']}, {run['outcome']}, {run['duration_ms']:,} ms in the sandbox")
        self.quote(run["stdout"])
        if run["exit_code"] != 0:
            self.quote(run["stderr"], mark="!", code="31")


def script(name: str) -> str:
    return (HERE / "analysis" / name).read_text(encoding="utf-8")


async def upload(screen: Screen, sandbox: Sandbox) -> dict[str, int]:
    """Returns how many rows and defects of each kind are in the file."""
    data, planted = make_csv.generate()
    expect(planted["rows"] >= MIN_ROWS, f"the CSV has at least {MIN_ROWS:,} rows", planted["rows"])
    (OUT / "marketing.csv").write_bytes(data)
    with screen.step(f"Upload marketing.csv: {planted['rows']:,} rows, {len(data):,} bytes, seed {make_csv.SEED}"):
        content = base64.b64encode(data).decode()
        answer, _ = await sandbox.call("upload_file", filename="marketing.csv", content_base64=content)
        expect_equal(answer["path"], "/mnt/data/marketing.csv", "the upload lies in /mnt/data")
        expect_equal(answer["size_bytes"], len(data), "the whole file arrived")
        screen.say(f"{answer['path']} in session {sandbox.session_id}")
    return planted


async def dataset(screen: Screen, sandbox: Sandbox, planted: dict[str, int]) -> None:
    """A folder of this machine that sandboxes read without an upload."""
    EXPORTS.mkdir(exist_ok=True)
    shutil.copyfile(OUT / "marketing.csv", EXPORTS / "marketing-before.csv")
    with screen.step("A dataset: sandboxes read demo/out/exports at /data/exports, and nobody uploads it"):
        listed, _ = await sandbox.call("list_artifacts", path="/data/exports")
        paths = [item["path"] for item in listed["artifacts"]]
        expect_equal(paths, ["/data/exports/marketing-before.csv"], "the files of the dataset are listed")
        run = await sandbox.run_well(script("00_dataset.py"))
        screen.show_run(run)
        expect(f"{planted['rows']:,} rows" in run["stdout"], "the program reads all of it", run["stdout"])
        expect("cannot be changed" in run["stdout"], "and cannot change it", run["stdout"])


async def first_look(screen: Screen, sandbox: Sandbox) -> None:
    with screen.step("First look (01_first_look.py): the model takes a column `cost` for granted"):
        run = await sandbox.run(script("01_first_look.py"))
        screen.show_run(run)
        failed = (run["exit_code"], run["outcome"])
        expect_equal(failed, (1, "error"), "a Python error is a result, not a failed call")
        expect_equal(run["artifacts"], [], "a failed run reports no artifacts")
        expect("missing" in run["stdout"], "what was printed before the error is kept", run["stdout"])
        for part in ("Traceback (most recent call last)", 'df["cost"]', "KeyError: 'cost'"):
            expect(part in run["stderr"], f"the traceback shows: {part}", run["stderr"])


async def fixed(screen: Screen, sandbox: Sandbox, planted: dict[str, int]) -> None:
    with screen.step("Fixed (02_clean_and_kpis.py): the column is `spend`, and the rest gets cleaned as well"):
        run = await sandbox.run_well(script("02_clean_and_kpis.py"))
        screen.show_run(run)
        artifact(run, "clean.pkl")
        quality = json.loads(await sandbox.read(artifact(run, "quality.json")["path"]))
        found = {item["issue"]: item["rows"] for item in quality}
        for defect, issue in PLANTED.items():
            expect_equal(found.get(issue), planted[defect], f"the analysis counts right: {issue}")
        defects = sum(planted.values()) - planted["rows"]
        screen.say(f"checked: it found each of the {defects:,} defects that were planted in the file")


async def charts(screen: Screen, sandbox: Sandbox) -> list[str]:
    """Returns the names of the charts."""
    with screen.step("Charts (03_charts.py)"):
        run = await sandbox.run_well(script("03_charts.py"))
        screen.show_run(run)
        pictures = [item["filename"] for item in run["artifacts"] if item["mime_type"] == "image/png"]
        expect(len(pictures) >= MIN_CHARTS, f"there are at least {MIN_CHARTS} charts", pictures)
    with screen.step("The model looks at every chart (read_artifact), and each is compared with its download"):
        for name in pictures:
            item = artifact(run, name)
            picture, scaled_to = await sandbox.look_at(item["path"])
            fetched = await download(item["download_url"])
            expect_equal(fetched.status, 200, f"{name} can be downloaded")
            expect_equal(len(fetched.body), item["size_bytes"], f"{name} has the size that the run reported")
            if scaled_to is None:
                expect(fetched.body == picture, f"{name} is the same by URL and by read_artifact")
            else:
                expect_equal(scaled_to, "{}x{}".format(*png_size(picture)), f"{name} is shown at the size that is told")
            (OUT / name).write_bytes(fetched.body)
            width, height = png_size(fetched.body)
            seen = f", seen at {scaled_to}" if scaled_to else ""
            screen.say(f"{name:<30} {width:,} x {height:,}  {len(fetched.body):>9,} bytes{seen}")
    return pictures


async def report(screen: Screen, sandbox: Sandbox) -> str:
    """Returns the URL from which the report was fetched."""
    with screen.step("Report (04_report.py)"):
        run = await sandbox.run_well(script("04_report.py"))
        screen.show_run(run)
        item = artifact(run, "report.pdf")
        expect_equal(item["mime_type"], "application/pdf", "the run announces a PDF")
    with screen.step("Fetch the report through its URL, as n8n or a browser would"):
        url: str = item["download_url"]
        fetched = await download(url)
        expect_equal(fetched.status, 200, f"{url} answers")
        expect_equal(fetched.headers.get_content_type(), "application/pdf", "the report is served as a PDF")
        expect_equal(fetched.headers["Content-Length"], str(len(fetched.body)), "its Content-Length is true")
        expect_equal(fetched.headers.get_filename(), "report.pdf", "its Content-Disposition names it")
        expect(fetched.body == await sandbox.read(item["path"]), "it is the same by URL and by read_artifact")
        pages = pdf_pages(fetched.body)
        expect(pages >= MIN_PAGES, f"the report has at least {MIN_PAGES} pages", pages)
        (OUT / "report.pdf").write_bytes(fetched.body)
        screen.say(f"{url}: {pages} pages, {len(fetched.body):,} bytes, the same as through read_artifact")
    return url


async def inventory(screen: Screen, sandbox: Sandbox, wanted: list[str]) -> None:
    with screen.step("What is in the session now (list_artifacts); save what is not saved yet"):
        listed, _ = await sandbox.call("list_artifacts")
        names = [item["filename"] for item in listed["artifacts"]]
        expect_equal(names, sorted(names), "the list is sorted by path")
        expect_equal(listed["total"], len(names), "they are on one page")
        missing = set(wanted) - set(names)
        expect(not missing, "everything that was made is there", missing)
        for item in listed["artifacts"]:
            name, size = item["filename"], item["size_bytes"]
            expect("/" not in name, "the analysis made no folders", name)
            if not (OUT / name).exists():
                (OUT / name).write_bytes((await download(url_of(listed, item))).body)
            expect_equal((OUT / name).stat().st_size, size, f"the saved {name} is whole")
            screen.say(f"{name:<30} {size:>10,} bytes  {item['modified_at']}")


async def close(screen: Screen, sandbox: Sandbox, url: str) -> None:
    with screen.step("Close the session: container, files and URLs are gone"):
        answer, _ = await sandbox.call("close_session")
        expect_equal(answer["status"], "closed", "the session is closed")
        gone = await download(url)
        expect_equal(gone.status, 404, f"{url} is gone")
        expect_equal(json.loads(gone.body).get("error"), "not_found", "and the answer says so")
        error = await sandbox.refused("list_artifacts")
        expect_equal(error["error"], "session_not_found", "the tools do not know the session any more")
        screen.say(f"{url}: {gone.status}")
        screen.say(f"list_artifacts: {error['message']}")


async def steps(screen: Screen, client: Client) -> None:
    sandbox = Sandbox(client)
    planted = await upload(screen, sandbox)
    if has_dataset():
        await dataset(screen, sandbox, planted)
    await first_look(screen, sandbox)
    await fixed(screen, sandbox, planted)
    pictures = await charts(screen, sandbox)
    url = await report(screen, sandbox)
    await inventory(screen, sandbox, ["marketing.csv", "clean.pkl", *pictures, "report.pdf"])
    await close(screen, sandbox, url)


def has_dataset() -> bool:
    """Whether the engine is on this machine, so that it has this folder."""
    return os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")


def server_parameters(binary: Path) -> StdioServerParameters:
    """The client hands on little of its environment; the way to the engine and the user's settings must get through."""
    needed = ("DOCKER_", "SANDBOX_", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    passed = {name: value for name, value in os.environ.items() if name.startswith(needed)}
    passed.setdefault("SANDBOX_LOG_FILE", str(OUT / "server.log"))
    if has_dataset():
        EXPORTS.mkdir(exist_ok=True)
        passed.setdefault("SANDBOX_DATASETS", f"exports={EXPORTS}")
    # The client does not tell how the server ended.
    return StdioServerParameters(
        command="/bin/sh", args=["-c", '"$0"; echo $? >"$1"', str(binary), str(EXIT_CODE)], env=passed, cwd=ROOT
    )


async def working_day(screen: Screen, binary: Path) -> None:
    failure: Exception | None = None
    with (OUT / "server.stderr").open("w", encoding="utf-8") as stderr:
        async with AsyncExitStack() as stack:
            with screen.step(f"Start {binary.name} and ask for its tools"):
                transport = stdio_client(server_parameters(binary), errlog=stderr)
                client = await stack.enter_async_context(Client(transport, read_timeout_seconds=CALL_LIMIT_S))
                names = {tool.name for tool in (await client.list_tools()).tools}
                expect(names >= TOOLS, f"the server offers {', '.join(sorted(TOOLS))}", sorted(names))
                about = client.server_info
                server = f"{about.name} {about.version}" if about else "a server without a name"
                screen.say(f"{server}, MCP {client.protocol_version}: {', '.join(sorted(names))}")
            try:
                await steps(screen, client)
            except Exception as error:  # kept, because the client's task group would wrap it
                failure = error
            else:
                with screen.step("End: close the server's stdin and wait until it has left"):
                    await stack.aclose()
                    code = EXIT_CODE.read_text(encoding="utf-8") if EXIT_CODE.exists() else "none"
                    expect_equal(code.strip(), "0", "the server ends well")
    if failure is not None:
        raise failure


def explain(screen: Screen, binary: Path, error: BaseException) -> None:
    while inner := getattr(error, "exceptions", None):  # the groups that concurrent code wraps errors in
        error = inner[0]
    kind = "broken promise" if isinstance(error, BrokenPromise) else type(error).__name__
    print(screen.paint("1;31", f"\nThe demo failed in step {screen.current}"), file=sys.stderr)
    print(f"   {kind}: {error}", file=sys.stderr)
    last_words = (OUT / "server.stderr").read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    if last_words:
        print("   last lines of the server:", *last_words, sep="\n   ", file=sys.stderr)
    check = shlex.join([str(binary), "doctor"])
    print(f"   To check the engine and the settings, run: {check}", file=sys.stderr)
    print(f"   The server's log is {os.path.relpath(OUT / 'server.log')}.", file=sys.stderr)


def say_what_next(binary: Path) -> None:
    report = os.path.relpath(OUT / "report.pdf")
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    opening = shlex.join([opener, report]) if shutil.which(opener) else "in a PDF viewer; this machine has no xdg-open"
    # Not every setting: some are secrets.
    embedded = os.environ.get("SANDBOX_ENGINE") == "wasm"
    of_docker = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "SANDBOX_IMAGE")
    needed = ("SANDBOX_ENGINE", "SANDBOX_RUNTIME_DIR", "XDG_CACHE_HOME") if embedded else of_docker
    passed = [f"{name}={value}" for name, value in os.environ.items() if name in needed]
    variables = [part for variable in passed for part in ("-e", variable)]
    command = shlex.join(["claude", "mcp", "add", "sandbox", *variables, "--", str(binary)])
    print("\nNext:")
    print(f"   See the report:        {report}")
    print(f"   Open it:               {opening}")
    print(f"   Charts, data and logs: {os.path.relpath(OUT)}")
    print(f"   Connect Claude Code:   {command}")
    print(f"   Connect other clients: {os.path.relpath(ROOT / 'docs' / 'clients' / 'README.md')}")
    if "debug" in binary.parts:
        print(f"   Optimize the server:   {shlex.join(['cargo', 'install', '--locked', '--path', os.path.relpath(ROOT)])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = ROOT / "target" / "debug" / "llm-sandbox"
    parser.add_argument("--server", type=Path, default=default, help="the binary (default: %(default)s)")
    binary = parser.parse_args().server.resolve()
    if not os.access(binary, os.X_OK):
        print(f"There is no program at {binary}. demo/run.sh builds it.", file=sys.stderr)
        return 1

    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    screen = Screen()
    started = time.perf_counter()
    try:
        anyio.run(working_day, screen, binary)
    except KeyboardInterrupt:
        print(f"\nStopped in step {screen.current}. Run demo/run.sh again to start the demo anew.", file=sys.stderr)
        return 130
    except Exception as error:
        explain(screen, binary, error)
        return 1

    print(screen.paint("1", f"\nAll {screen.steps} steps as expected, in {time.perf_counter() - started:.1f} s."))
    say_what_next(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
