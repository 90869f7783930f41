"""Measures how long calls take on the cluster of the tests, with two servers that share their callers.

    eval "$(tests/kubernetes/cluster.sh env)"
    python3 tests/kubernetes/measure.py target/release/llm-sandbox [rounds]

The cluster must be up. Prints medians in milliseconds. Kinds of calls take turns, so that what the machine does besides
is the same for all of them. Takes some minutes."""

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

binary = os.path.realpath(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 200
NAMESPACE = "measure"
MODERN = "2026-07-28"
kubectl = [os.environ["KUBECTL"], "--kubeconfig", os.environ["KUBECONFIG"]]


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Server:
    def __init__(self, folder, **more):
        self.port = free_port()
        self.process = subprocess.Popen(
            [binary, "serve", "--http"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"], "KUBECONFIG": os.environ["KUBECONFIG"], "SANDBOX_ENGINE": "kubernetes",
                "SANDBOX_KUBERNETES_NAMESPACE": NAMESPACE, "SANDBOX_KEY_FILE": f"{folder}/key",
                "SANDBOX_AUTH_TOKENS": "a:a-token", "SANDBOX_HTTP_PORT": str(self.port), "SANDBOX_LOG_FILE": "",
                "SANDBOX_LOG_LEVEL": "ERROR", "SANDBOX_PEER_ADDRESS": f"127.0.0.1:{free_port()}", **more,
            },
        )
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port)):
                    break
            except OSError:
                time.sleep(0.02)
        self.kept = http.client.HTTPConnection("127.0.0.1", self.port)
        self.kept.connect()
        self.kept.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, tool, **arguments):
        """The result, and how long it took."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": tool, "arguments": arguments,
            "_meta": {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}},
        }}
        headers = {
            "Authorization": "Bearer a-token", "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        body = json.dumps(message)
        began = time.perf_counter()
        self.kept.request("POST", "/mcp", body, headers)
        said = self.kept.getresponse().read().decode()
        took = (time.perf_counter() - began) * 1000
        result = json.loads(said)["result"]
        assert not result.get("isError"), result
        return result["structuredContent"], took

    def until_ready(self, pods):
        """Waits until this many sandboxes wait."""
        while True:
            self.kept.request("GET", "/metrics", headers={"Authorization": "Bearer a-token"})
            text = self.kept.getresponse().read().decode()
            waiting = [line for line in text.splitlines() if line.startswith("llm_sandbox_pooled_sandboxes ")]
            if float(waiting[0].split()[-1]) >= pods:
                return
            time.sleep(0.2)


def tell(what, times):
    times = sorted(times)
    print(f"{what:<58} {statistics.median(times):8.2f}   (90 % within {times[int(len(times) * 0.9)]:.2f})", flush=True)


subprocess.run([*kubectl, "create", "namespace", NAMESPACE], check=False, capture_output=True)
with tempfile.TemporaryDirectory() as folder:
    with open(os.open(f"{folder}/key", os.O_WRONLY | os.O_CREAT, 0o600), "w") as key:
        key.write(os.urandom(32).hex())
    home, other = Server(folder, SANDBOX_POOL_SIZE="0"), Server(folder, SANDBOX_POOL_SIZE="0")
    try:
        cold = []
        for n in range(10):
            done, took = home.call("run_python", session_id=f"cold-{n}", code="print(1)")
            cold.append(took)
            home.call("close_session", session_id=f"cold-{n}")
        tell("a program in a new session, none kept ready", cold)
        for server in (home, other):
            server.call("execute_code", session_id="kept", code="x = 0")
        kinds = {
            "a program that prints": ("run_python", "print(1)"),
            "a cell that prints": ("execute_code", "print(1)"),
        }
        for what, (tool, code) in kinds.items():
            at_home, elsewhere = [], []
            for n in range(2 * rounds):
                # The work of a sandbox after a call must not delay the next call.
                time.sleep(0.06)
                server, times = [(home, at_home), (other, elsewhere)][n % 2]
                times.append(server.call(tool, session_id="kept", code=code)[1])
            tell(f"{what}, asked where it is at home", at_home)
            tell(f"{what}, asked of another server", elsewhere)
        home.call("close_session", session_id="kept")
    finally:
        for server in (home, other):
            server.process.terminate()
        for server in (home, other):
            server.process.wait()
    pooled = Server(folder, SANDBOX_POOL_SIZE="2")
    try:
        first = []
        for _ in range(10):
            pooled.until_ready(2)
            # Their libraries are loaded, too.
            time.sleep(3)
            done, took = pooled.call("run_python", code="print(1)")
            first.append(took)
            pooled.call("close_session", session_id=done["session_id"])
        tell("a program in a new session, one kept ready", first)
    finally:
        pooled.process.terminate()
        pooled.process.wait()
subprocess.run([*kubectl, "delete", "namespace", NAMESPACE, "--wait=false"], check=False, capture_output=True)
