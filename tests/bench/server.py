"""Our contestant: a server of its own over standard input and output, with a client that is small enough to show
what is timed.

The time of a call begins before its message is built (base64 of an upload included) and ends after the answer has
been parsed: it covers everything that a client must do for the call.
"""

import base64
import http.client
import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import engine
from measure import Ran, Wrong, right
from worker import PATIENCE_S, Process

BAD_SETTINGS = 64


def environment(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """The settings of the server alone; of the caller's own settings only the paths that it needs are kept."""
    kept = {"SANDBOX_RUNTIME_DIR"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_") or name in kept}
    return others | {"SANDBOX_HTTP_PORT": "0", "SANDBOX_LOG_FILE": "", "TMPDIR": str(folder)} | settings


def accepts(binary: Path, folder: Path, name: str, value: str) -> bool:
    """Whether this program knows a setting; it exits with 64 if it does not."""
    env = environment({name: value}, folder)
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "start_new_session": True}
    done = subprocess.run([binary], cwd=folder, env=env, timeout=PATIENCE_S, **quiet)
    if done.returncode not in (0, BAD_SETTINGS):
        raise Wrong("the server does not start", done.returncode, done.stderr.decode(errors="replace")[-500:])
    return done.returncode == 0


class Refused(Wrong):
    """An error of a tool."""


class Server(Process):
    """A server process with its only client."""

    def __init__(self, binary: Path, folder: Path, name: str, settings: dict[str, str]) -> None:
        self.log = folder / f"{name}.log"
        logging = {"SANDBOX_LOG_FILE": str(self.log), "SANDBOX_LOG_FORMAT": "json"}
        env = environment(logging | settings, folder)
        super().__init__([binary], folder / f"{name}.stderr", cwd=folder, env=env)
        self._ids = itertools.count(1)
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.receive(self.send("initialize", hello))
        self.write_line(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def request(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        """A request as a line, and the id of its answer."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return number, json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def message(self, tool: str, **arguments: Any) -> tuple[int, bytes]:
        """A call as a line, and the id of its answer."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def send(self, method: str, params: dict[str, Any]) -> int:
        number, line = self.request(method, params)
        self.write_line(line)
        return number

    def receive_any(self) -> dict[str, Any]:
        """The next answer to any request."""
        while True:
            message: dict[str, Any] = json.loads(self.line())
            if "id" in message:
                return message

    def receive(self, number: int) -> dict[str, Any]:
        message = self.receive_any()
        right(message["id"] == number and "result" in message, "not the answer", str(message)[:500])
        result: dict[str, Any] = message["result"]
        return result

    def call(self, tool: str, **arguments: Any) -> tuple[float, dict[str, Any]]:
        """A tool call that must succeed: its seconds and its result."""
        begun = time.perf_counter()
        number, line = self.message(tool, **arguments)
        self.write_line(line)
        result = self.receive(number)
        seconds = time.perf_counter() - begun
        return seconds, content(result)

    def close(self, session: str) -> float:
        return self.call("close_session", session_id=session)[0]

    def containers(self, *filters: str) -> list[str]:
        """Ids of the containers of this server; other servers may use this engine, too."""
        wanted = [part for one in ("label=app=llm-sandbox", *filters) for part in ("--filter", one)]
        template = '{{.ID}} {{.Label "llm-sandbox.owner"}}'
        listed = engine.docker("ps", "--all", "--no-trunc", *wanted, "--format", template).decode()
        lines = (line.split(" ", 1) for line in listed.splitlines())
        return [container for container, owner in lines if owner.split("/")[3:4] == [str(self.process.pid)]]

    def container_of(self, session: str) -> str:
        found = self.containers(f"label=session_id={session}")
        right(len(found) == 1, "one container a session", found)
        return found[0]

    def until_containers(self, count: int, patience_s: float = 60) -> None:
        """Waits until the server has this number of containers, and all of them have loaded what they load ahead."""
        deadline = time.monotonic() + patience_s
        while len(ids := self.containers()) != count:
            right(time.monotonic() < deadline, "containers", len(ids), "wanted", count)
            time.sleep(0.05)
        engine.until_still(ids)

    def figures(self) -> tuple[int, int]:
        """Resident memory in kB and open descriptors."""
        folder = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]), len(list((folder / "fd").iterdir()))

    def calls_logged(self) -> dict[str, dict[str, Any]]:
        """Log lines of calls, by run."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines())
        return {line["run_id"]: line for line in lines if line.get("message") == "tool call" and "run_id" in line}


def content(result: dict[str, Any]) -> dict[str, Any]:
    if result.get("isError"):
        raise Refused(result["content"][-1]["text"])
    answer: dict[str, Any] = result["structuredContent"]
    return answer


def as_ran(seconds: float, answer: dict[str, Any]) -> Ran:
    return Ran(seconds, answer["exit_code"], answer["stdout"], answer["stderr"], answer)


class Ours:
    """A warm session of a server."""

    key = "ours"

    def __init__(self, server: Server, session: str) -> None:
        self.server, self.session = server, session

    def run(self, code: str) -> Ran:
        return as_ran(*self.server.call("run_python", session_id=self.session, code=code))

    def upload(self, name: str, content: bytes) -> float:
        begun = time.perf_counter()
        encoded = base64.b64encode(content).decode()
        arguments = {"session_id": self.session, "filename": name, "content_base64": encoded, "overwrite": True}
        _, answer = self.server.call("upload_file", **arguments)
        seconds = time.perf_counter() - begun
        right(answer["size_bytes"] == len(content), "upload", answer)
        return seconds

    def url(self, name: str) -> str:
        _, listed = self.server.call("list_artifacts", session_id=self.session)
        file = next(file for file in listed["artifacts"] if file["filename"] == name)
        url = file.get("download_url") or listed["download_url_template"].replace("{filename}", name)
        return str(url)

    def download(self, name: str) -> tuple[float, bytes]:
        """Downloads over HTTP, with a new connection each time: read_artifact is for files that a model looks at."""
        url = self.url(name)
        begun = time.perf_counter()
        body = b"".join(fetched(url))
        return time.perf_counter() - begun, body

    def digest(self, name: str) -> str:
        code = f"import hashlib\nprint(hashlib.sha256(open('/mnt/data/{name}', 'rb').read()).hexdigest())"
        return self.run(code).stdout.strip()


def fetched(url: str, piece: int = 1 << 20) -> Iterator[bytes]:
    """The pieces of a file from its address, as they arrive."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
    try:
        # The query can be the signature, so it is sent as well.
        connection.request("GET", f"{address.path}?{address.query}")
        response = connection.getresponse()
        right(response.status == 200, "GET", response.status)
        while block := response.read(piece):
            yield block
    finally:
        connection.close()
