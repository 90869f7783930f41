"""A client of the real program over standard input and output, which only sends and reads JSON-RPC lines.

Every line of output must be JSON, and every request must be answered, both within a time that only a
server that hangs would need.
"""

import base64
import itertools
import json
import os
import subprocess
import threading
from pathlib import Path

PATIENCE_S = 120


def figures(process):
    """Resident memory of a server in kB and its open descriptors, now."""
    proc = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]), len(list((proc / "fd").iterdir()))


class Server:
    def __init__(self, binary, folder, settings):
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
        env |= {"SANDBOX_HTTP_PORT": "0", "SANDBOX_LOG_FILE": "", "SANDBOX_LOG_LEVEL": "WARN"} | settings
        self.stderr = open(Path(folder) / "stderr.log", "wb")
        self.process = subprocess.Popen(
            [binary], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr
        )
        self._ids = itertools.count(1)
        self._waiting = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self.broken_lines = []
        threading.Thread(target=self._read, daemon=True).start()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
        self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                self.broken_lines.append(line[:200])
                continue
            with self._lock:
                waiter = self._waiting.pop(message.get("id"), None)
            if waiter:
                waiter[1] = message
                waiter[0].set()

    def send_line(self, line):
        with self._writing:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def send(self, message):
        self.send_line(json.dumps(message).encode())

    def start(self, method, params):
        """Sends a request; returns its id and the object that `wait` needs."""
        request = next(self._ids)
        waiter = [threading.Event(), None]
        with self._lock:
            self._waiting[request] = waiter
        self.send({"jsonrpc": "2.0", "id": request, "method": method, "params": params})
        return request, waiter

    def forget(self, request):
        """Stops waiting for an answer: a cancelled request has none."""
        with self._lock:
            self._waiting.pop(request, None)

    def wait(self, waiter):
        if not waiter[0].wait(PATIENCE_S):
            raise TimeoutError("the server does not answer")
        return waiter[1]

    def request(self, method, params):
        return self.wait(self.start(method, params)[1])

    def call(self, tool, **arguments):
        """Makes a tool call: `(None, result)`, or `(code, error)`; a protocol error's code is its number."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        return self.outcome(answer)

    @staticmethod
    def outcome(answer):
        if "error" in answer:
            return answer["error"]["code"], answer["error"]
        result = answer["result"]
        shown = json.loads(next(block["text"] for block in result["content"] if block["type"] == "text"))
        if result["isError"]:
            return shown["error"], shown
        assert result["structuredContent"] == shown, "the same JSON twice"
        return None, shown

    def upload(self, session, name, content, **more):
        encoded = base64.b64encode(content).decode()
        return self.call("upload_file", session_id=session, filename=name, content_base64=encoded, **more)

    def figures(self):
        return figures(self.process)

    def end(self):
        """Ends the server as a client does; returns its exit code."""
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.stderr.close()
        return code
