"""The checks of an engine in the emulated machine: a server over HTTP, and what its sandboxes withstand.

Prints a line for each check. It uses the standard library alone, because the machine has no network. Programs run 10
to 20 times slower there, so its limits of time only end what hangs.
"""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVER = os.environ["LLM_SANDBOX_BIN"]
REPOSITORY = Path(os.environ["REPOSITORY"])
RESTART = os.environ["RESTART_ENGINE"]
# Profile of AppArmor that containers of this engine must have; empty: the engine applies none.
PROFILE = os.environ.get("APPARMOR_PROFILE", "")
PATIENCE_S = 600
TOKEN = "alice-token-of-the-emulated-machine"

Json = dict[str, Any]
failures = 0


def check(what: str, does: Callable[[], None]) -> None:
    global failures
    began = time.monotonic()
    try:
        does()
        print(f"ok   {what} ({time.monotonic() - began:.1f} s)", flush=True)
    except Exception as error:
        failures += 1
        print(f"FAIL {what} ({time.monotonic() - began:.1f} s): {type(error).__name__}: {str(error)[:2000]}", flush=True)


def equal(found: object, wanted: object, about: object = "") -> None:
    if found != wanted:
        raise AssertionError(f"expected {wanted!r}, found {found!r} {about}")


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def containers() -> list[str]:
    return docker("ps", "--all", "--quiet", "--filter", "label=app=llm-sandbox").split()


def until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.2)


class Server:
    """A server over HTTP, and one MCP session of one caller."""

    def __init__(self, folder: str, **settings: str) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        environment = os.environ | {
            "SANDBOX_HTTP_PORT": str(self.port),
            "SANDBOX_AUTH_TOKENS": f"alice:{TOKEN}",
            "SANDBOX_KEY_FILE": f"{folder}/key",
            "SANDBOX_LOG_FILE": "",
            "SANDBOX_LOG_LEVEL": "WARN",
            "SANDBOX_CONFIG_FILE": "/dev/null",
            "SANDBOX_ENV_FILE": "/dev/null",
            "SANDBOX_ENGINE": "docker",
            "SANDBOX_POOL_SIZE": "0",
            "SANDBOX_PRELOAD": "json",
            "SANDBOX_EXEC_TIMEOUT_S": "600",
            "SANDBOX_DEFAULT_TIMEOUT_S": "600",
            **settings,
        }
        self.process = subprocess.Popen([SERVER, "serve", "--http"], env=environment, cwd=folder)
        self.headers: dict[str, str] = {}
        self.next = 0
        until("the server listens", self.listens)
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "checks", "version": "1"},
        }
        self.ask("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def listens(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}")
        with socket.socket() as found:
            return found.connect_ex(("127.0.0.1", self.port)) == 0

    def send(self, message: Json) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/mcp",
            json.dumps(message).encode(),
            {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                "Authorization": f"Bearer {TOKEN}",
                **self.headers,
            },
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            if "Mcp-Session-Id" in answer.headers:
                self.headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
            return str(answer.read().decode())

    def ask(self, method: str, parameters: Json) -> Json:
        self.next += 1
        text = self.send({"jsonrpc": "2.0", "id": self.next, "method": method, "params": parameters})
        # Blanks come first if the answer takes a while.
        lines = re.findall(r"^(?:data:)?\s*(\{.*)$", text, re.MULTILINE)
        answers = [message for message in map(json.loads, lines) if message.get("id") == self.next]
        if not answers or "result" not in answers[-1]:
            raise AssertionError(f"{method} has no result: {text[:2000]}")
        result: Json = answers[-1]["result"]
        return result

    def tool(self, tool: str, **arguments: Any) -> Json:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        text = [block["text"] for block in result["content"] if block["type"] == "text"][-1]
        try:
            answer: Json = json.loads(text)
        except ValueError:
            raise AssertionError(text) from None
        if result.get("isError"):
            raise AssertionError(text)
        return answer

    def run(self, session: str, code: str, seconds: int = 300) -> Json:
        return self.tool("run_python", session_id=session, code=code, timeout_s=seconds)

    def cell(self, session: str, code: str, seconds: int = 300) -> Json:
        return self.tool("execute_code", session_id=session, code=code, timeout=seconds)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def well(run: Json) -> Json:
    equal((run["exit_code"], run["outcome"]), (0, "ok"), str(run.get("stderr"))[-1500:])
    return run


def limits(server: Server) -> None:
    def prints() -> None:
        equal(well(server.run("limits", "print(2 + 2)"))["stdout"], "4\n")

    def confined() -> None:
        code = (
            "try: print(open('/proc/1/attr/current').read().strip('\\n\\0'))\n"
            "except OSError as error: print(error.strerror)"
        )
        found = well(server.run("limits", code))["stdout"].strip()
        if PROFILE:
            # The name of Podman's profile ends with its version.
            equal(bool(re.fullmatch(rf"{PROFILE}(-[\d.]+)? \(enforce\)", found)), True, found)
        else:
            print(f"     AppArmor in a container: {found}")

    def limited() -> None:
        names = ["memory.max", "memory.swap.max", "pids.max", "cpu.max"]
        code = f"for name in {names}:\n    print(name, open('/sys/fs/cgroup/' + name).read().strip())"
        found = dict(line.split(" ", 1) for line in well(server.run("limits", code))["stdout"].splitlines())
        print(f"     cgroup of a container: {found}")
        if "max" in (found["memory.max"], found["pids.max"]):
            raise AssertionError("there is no limit")
        equal(found["memory.swap.max"], "0")

    def goes_on() -> None:
        well(server.run("limits", "assert open('kept').read() == 'x'"))

    def memory() -> None:
        well(server.run("limits", "open('kept', 'w').write('x')"))
        bomb = server.run("limits", "x = []\nfor _ in range(3000): x.append(b'x' * 10**6)")
        equal(bomb["outcome"], "out_of_memory", bomb)
        goes_on()

    def memory_of_child() -> None:
        code = (
            "import subprocess, sys\n"
            "bomb = 'x = []\\nfor _ in range(3000): x.append(bytes([1]) * 10**6)'\n"
            "print(subprocess.run([sys.executable, '-c', bomb]).returncode)"
        )
        run = server.run("limits", code)
        equal(run["stdout"], "-9\n", run)
        goes_on()

    def forks() -> None:
        code = (
            "import os, time\nn = 0\n"
            "try:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\n"
            "except OSError as error: print(type(error).__name__, 50 < n < 128)"
        )
        equal(well(server.run("limits", code))["stdout"], "BlockingIOError True\n")
        goes_on()

    def disk() -> None:
        run = server.run("disk", "with open('a', 'wb') as f:\n    while True: f.write(bytes(10**6))")
        equal("No space left" in run["stderr"], True, run)
        well(server.run("disk", "import os\nos.remove('a')\nopen('b', 'w').write('x')"))

    def timeout() -> None:
        equal(server.run("limits", "while True: pass", 10)["outcome"], "timeout")
        goes_on()

    check("a program prints", prints)
    check(f"AppArmor's profile {PROFILE} is in force" if PROFILE else "AppArmor in a container is told", confined)
    check("the cgroup of a container has limits of memory, swap and processes", limited)
    check("a memory bomb is killed, and the session goes on", memory)
    check("a memory bomb in a child process is killed alone", memory_of_child)
    check("a fork bomb reaches the limit of processes", forks)
    check("a full disk is an error of the program", disk)
    check("a timeout ends a program", timeout)


def cells(server: Server) -> None:
    def persist() -> None:
        equal(server.cell("cells", "import itertools\nn = itertools.count(5)\nnext(n)")["status"], "success")
        equal(server.cell("cells", "next(n)")["result"], "6")

    def bomb() -> None:
        stopped = server.cell("cells", "n = None\nx = []\nfor _ in range(3000): x.append(b'x' * 10**6)")
        equal(stopped["status"] in ("out_of_memory", "crashed", "error"), True, stopped)
        equal(server.cell("cells", "next(n)")["result"], "7")

    def timeout() -> None:
        equal(server.cell("cells", "n = None\nwhile True: pass", 10)["status"], "timeout")
        equal(server.cell("cells", "next(n)")["result"], "8")

    check("variables of cells persist", persist)
    check("a cell with a memory bomb is rolled back", bomb)
    check("a cell that is stopped is rolled back", timeout)


def analysis(server: Server) -> None:
    sys.path.insert(0, str(REPOSITORY / "demo"))
    import make_csv  # type: ignore[import-not-found]

    def upload() -> None:
        data, _ = make_csv.generate()
        content = base64.b64encode(data).decode()
        server.tool("upload_file", session_id="demo", filename="marketing.csv", content_base64=content)

    def script(name: str) -> Json:
        # A program that a signal ends says where it was.
        start = "import faulthandler; faulthandler.enable()\n"
        return server.run("demo", start + (REPOSITORY / "demo/analysis" / name).read_text(encoding="utf-8"), 600)

    def charts() -> None:
        made = well(script("03_charts.py"))["artifacts"]
        pictures = [item for item in made if item["mime_type"] == "image/png"]
        equal(len(pictures) >= 4, True, made)

    def report() -> None:
        made = [item["filename"] for item in well(script("04_report.py"))["artifacts"]]
        equal("report.pdf" in made, True, made)

    check("demo: the CSV is uploaded", upload)
    check("demo: the first look ends with its traceback", lambda: equal(script("01_first_look.py")["outcome"], "error"))
    check("demo: the data is cleaned", lambda: equal(script("02_clean_and_kpis.py")["outcome"], "ok"))
    check("demo: charts", charts)
    check("demo: the report", report)


def engine_restarts(server: Server) -> None:
    def restart() -> None:
        well(server.run("restart", "print(1)"))
        subprocess.run(RESTART, shell=True, check=True)
        until("no container is left", lambda: not containers(), 120)

    def next_call() -> None:
        # The session is lost with its container; what is promised is that the next call says so or works.
        def works() -> bool:
            try:
                return bool(server.run("restart", "print(1)")["outcome"] == "ok")
            except AssertionError:
                return False

        until("a call works", works)

    check("a restart of the engine leaves no container", restart)
    check("the call after it works", next_call)


def leash(folder: str) -> None:
    server = Server(folder)

    def killed() -> None:
        well(server.run("leash", "print(1)"))
        equal(len(containers()), 1)
        server.kill()
        until("no container is left", lambda: not containers(), 90)

    check("a killed server leaves no container", killed)


def hold(folder: str) -> None:
    settings = {"SANDBOX_HOLD_S": "300"}

    def taken_over() -> None:
        first = Server(folder, **settings)
        equal(first.cell("held", "import itertools\nn = itertools.count(5)\nnext(n)")["status"], "success")
        first.kill()
        equal(len(containers()), 1, "the sandbox waits")
        second = Server(folder, **settings)
        again = second.cell("held", "next(n)")
        equal((again.get("result"), again.get("new_session")), ("6", None), again)
        second.tool("close_session", session_id="held")
        second.end()
        equal(containers(), [])

    check("the next server goes on with the session of a killed one", taken_over)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        for part in (limits, cells, analysis, engine_restarts):
            part(server)
        check("a server that is told to end does", server.end)
        leash(folder)
        hold(folder)
        check("no container is left", lambda: equal(containers(), []))
    return min(failures, 1)


sys.exit(main())
