"""Drives the soak over HTTP: fifty callers of five principals at the same time, each with a session of its own, half of
them with MCP sessions and half without; some never close their MCP sessions."""

import base64
import hashlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client import figures
from jobs import right
from soak import Tally, new_seed, soak

CALLERS = 50
REMEMBERED = 500
PRINCIPALS = 5
PATIENCE_S = 120
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
CHART = """
import zlib, struct
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
side = 64
rows = b''.join(b'\\0' + bytes([%d]) * 3 * side for _ in range(side))
open('chart.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0))
    + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
"""


class Server:
    def __init__(self, binary, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.tokens = [f"token-{n}-{os.getpid()}" for n in range(PRINCIPALS)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")} | {
            "SANDBOX_TRANSPORT": "http",
            "SANDBOX_HTTP_PORT": str(self.port),
            "SANDBOX_AUTH_TOKENS": ",".join(f"p{n}:{token}" for n, token in enumerate(self.tokens)),
            "SANDBOX_MAX_SESSIONS": str(CALLERS + 1),
            "SANDBOX_MAX_SESSIONS_PER_CLIENT": str(CALLERS // PRINCIPALS),
            "SANDBOX_LOG_FILE": "",
            "SANDBOX_LOG_LEVEL": "WARN",
        }
        self.stderr = open(Path(folder) / "stderr.log", "wb")
        self.process = subprocess.Popen([binary], cwd=folder, env=env, stderr=self.stderr)
        for _ in range(1000):
            try:
                if self.plain("GET", "/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError("the server does not listen")

    def plain(self, method, target, body=None, headers=None):
        """Sends one request on a connection of its own; returns status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, target, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def figures(self):
        return figures(self.process)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.stderr.close()
        return code


class Caller:
    def __init__(self, server, number, seed, tally):
        self.server, self.number, self.tally = server, number, tally
        self.random = random.Random(f"{seed} {number}")
        self.token = server.tokens[number % PRINCIPALS]
        self.modern = number % 2 == 0
        self.session = f"websoak-{os.getpid()}-{number}"
        self.headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.headers["Accept"] = "application/json, text/event-stream"
        self.mcp = None
        self.ids = itertools.count(1)

    def post(self, message, headers=None):
        status, sent, body = self.server.plain("POST", "/mcp", json.dumps(message), self.headers | (headers or {}))
        return status, sent, [json.loads(body)] if body else []

    def open(self):
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
        status, sent, _ = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        right(status == 200, "initialize", status)
        self.mcp = sent["Mcp-Session-Id"]
        headers = {"Mcp-Session-Id": self.mcp}
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)

    def request(self, tool, arguments):
        """The message of a call, and its headers."""
        params = {"name": tool, "arguments": {"session_id": self.session} | arguments}
        headers = {}
        if self.modern:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        else:
            headers = {"Mcp-Session-Id": self.mcp, "MCP-Protocol-Version": LEGACY}
        return {"jsonrpc": "2.0", "id": next(self.ids), "method": "tools/call", "params": params}, headers

    def call(self, tool, **arguments):
        """Makes a call: `(None, result, blocks)` or `(code, error, blocks)`."""
        # Workflows do the same: they open an MCP session for each of their steps and leave it open.
        if not self.modern and (self.mcp is None or self.random.random() < 0.2):
            self.open()
        status, _, messages = self.post(*self.request(tool, arguments))
        right(status == 200 and messages and "result" in messages[-1], tool, status, str(messages)[:500])
        result = messages[-1]["result"]
        text = next(block["text"] for block in result["content"] if block["type"] == "text")
        shown = json.loads(text)
        code = shown["error"] if result["isError"] else None
        self.tally.count(self.tally.calls, code or "success")
        return code, shown, result["content"]

    def run(self, code, **arguments):
        error, answer, content = self.call("run_python", code=code, **arguments)
        right(error is None and answer["session_id"] == self.session, error, answer)
        return answer, content

    # --- jobs ---

    def prints(self):
        number = self.random.randrange(10**9)
        right(self.run(f"print({number} + 1)")[0]["stdout"] == f"{number + 1}\n", "another's output")

    def up_and_down(self):
        content = self.random.randbytes(self.random.choice([0, 1, 1000, 300_000, 3_000_000]))
        target = f"/files/{self.session}/folder/up.bin"
        own = {"Authorization": f"Bearer {self.token}"}
        status, _, body = self.server.plain("PUT", target, content, own)
        right(status in (200, 201) and json.loads(body)["size_bytes"] == len(content), status, body[:300])
        answer, _ = self.run("import hashlib; print(hashlib.sha256(open('folder/up.bin', 'rb').read()).hexdigest())")
        right(answer["stdout"].strip() == hashlib.sha256(content).hexdigest(), "another file")
        status, _, body = self.server.plain("GET", target, headers=own)
        right(status == 200 and body == content, "downloaded", status)

    def chart(self):
        shade = self.random.randrange(256)
        answer, content = self.run(CHART % shade)
        images = [block for block in content if block["type"] == "image"]
        right(len(images) == 1 and images[0]["mimeType"] == "image/png", "a picture")
        url = answer["artifacts"][0]["download_url"].split(f":{self.server.port}", 1)[1]
        # The URL is signed, so it needs no token.
        status, _, body = self.server.plain("GET", url)
        right(status == 200 and body == base64.b64decode(images[0]["data"]), "the same picture", status)

    def another_is_refused(self):
        other = (self.number + 1) % CALLERS
        right(other % PRINCIPALS != self.number % PRINCIPALS, "another principal")
        own, self.session = self.session, f"websoak-{os.getpid()}-{other}"
        try:
            code, *_ = self.call(self.random.choice(["list_artifacts", "close_session"]))
            right(code == "session_not_found", code)
        finally:
            self.session = own
        status, *_ = self.server.plain("GET", f"/files/{self.session}/kept", headers={"Authorization": "Bearer no"})
        right(status == 401, "a wrong token", status)

    def goes_away(self):
        """Closes its connection during a run; without an MCP session that kills the run."""
        if not self.modern:
            return
        message, headers = self.request("run_python", {"code": "import time; time.sleep(60)", "timeout_s": 60})
        body = json.dumps(message)
        headers |= self.headers
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        connection.request("POST", "/mcp", body, headers)
        time.sleep(self.random.random())
        connection.close()
        until = time.monotonic() + 30
        while True:
            code, answer, _ = self.call("run_python", code="print('again')")
            if code != "session_busy":
                right(code is None and answer["stdout"] == "again\n", code, answer)
                return
            right(time.monotonic() < until, "it still runs")

    def closes(self):
        code, *_ = self.call("close_session")
        right(code is None, code)
        self.begin()

    def begin(self):
        own = {"Authorization": f"Bearer {self.token}"}
        kept = self.session.encode()
        status, _, body = self.server.plain("PUT", f"/files/{self.session}/kept", kept, own)
        right(status == 201, "a new session", status, body[:300])

    def work(self, until):
        jobs = {
            self.prints: 40, self.up_and_down: 20, self.chart: 15, self.another_is_refused: 5,
            self.goes_away: 5, self.closes: 3,
        }
        while time.monotonic() < until:
            job = self.random.choices(list(jobs), list(jobs.values()))[0]
            try:
                job()
                right(self.run("print(open('kept').read())")[0]["stdout"].strip() == self.session, "mixed up")
                self.tally.count(self.tally.jobs, job.__name__)
            except Exception as error:
                self.tally.fault(job.__name__, f"{type(error).__name__}: {error}"[:500])
                if self.server.process.poll() is not None or len(self.tally.wrong) > 200:
                    return
            # People and models think between two calls.
            time.sleep(self.random.random() * 0.2)


def main(binary, minutes):
    seed, tally = new_seed(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, folder)
        callers = [Caller(server, number, seed, tally) for number in range(CALLERS)]
        for caller in callers:
            caller.begin()
        # As many MCP sessions as the server remembers, so that the memory for them does not look like growth.
        for _ in range(REMEMBERED):
            callers[1].open()
        about = f"{CALLERS} callers, {PRINCIPALS} principals"
        # If the engine is slow, containers whose removal the server did not wait for end a little later.
        return soak("soak over HTTP", server, folder, tally, callers, minutes, seed, about, patience_s=30)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
