"""A client with nothing but the standard library, so that it runs wherever there is a Python.

    session.py <base>          a whole session, with a line for each check
    session.py <base> <name>   starts a session of this name with a program that does not end, and leaves it so

The token is in TOKEN.
"""

import json
import os
import sys
import urllib.error
import urllib.request

BASE = sys.argv[1]
TOKEN = os.environ["TOKEN"]
LIMIT_S = 90
CHART = """
import matplotlib.pyplot as plt, pandas as pd
sales = pd.read_csv('sales.csv')
sales.plot(x='month', y='sum')
plt.savefig('chart.png')
print(sales['sum'].sum())
"""


def check(name, holds, found=None):
    print(f"ok   {name}" if holds else f"FAIL {name}\n     found {found!r}", flush=True)


def ask(method, url, body=None, token=TOKEN, headers=None):
    """Status, headers and body; a path is one of the server's."""
    url = BASE + url if url.startswith("/") else url
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        # No proxy of the environment: it does not know the way.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Mcp:
    """One MCP session."""

    def __init__(self):
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self.number = 0
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        status, headers, _ = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        assert status == 200, status
        self.headers |= {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def post(self, message):
        return ask("POST", "/mcp", json.dumps(message).encode(), headers=self.headers)

    def call(self, tool, **arguments):
        self.number += 1
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": params}
        status, _, body = self.post(message)
        assert status == 200, (status, body)
        return json.loads(body)["result"]


def whole_session():
    status, _, body = ask("POST", "/mcp", b"{}", token=None, headers={"Content-Type": "application/json"})
    check("Nobody comes in without a token", status == 401, (status, body))
    status, _, _ = ask("POST", "/mcp", b"{}", token="x" * 64, headers={"Content-Type": "application/json"})
    check("Nor with a wrong one", status == 401, status)
    status, _, body = ask("GET", "/ready", token=None)
    check("The server is ready", status == 200, body)

    mcp = Mcp()
    csv = b"month,sum\n" + b"".join(b"%d,%d\n" % (month, month * 100) for month in range(1, 13))
    made = mcp.call("upload_file", filename="hello.txt", text="hello")["structuredContent"]
    session = made["session_id"]
    status, _, body = ask("PUT", f"/files/{session}/sales.csv", csv)
    put = json.loads(body)
    check("A file is put", status == 201 and put["size_bytes"] == len(csv), (status, put))

    run = mcp.call("run_python", session_id=session, code=CHART)
    report = run["structuredContent"]
    check("A program draws a chart of it", report["outcome"] == "ok" and report["stdout"] == "7800\n", report)
    pictures = [block for block in run["content"] if block["type"] == "image"]
    check("The chart comes with the result", len(pictures) == 1, [block["type"] for block in run["content"]])

    mcp.call("execute_code", session_id=session, code="x = 20")
    cell = mcp.call("execute_code", session_id=session, code="x + 22")["structuredContent"]
    check("A cell has the variable of the one before", cell.get("result") == "42", cell)

    listed = mcp.call("list_artifacts", session_id=session)["structuredContent"]
    upload = mcp.call("upload_file", session_id=session, filename="later.txt")["structuredContent"]
    _, _, body = ask("GET", f"/files/{session}/")
    urls = {
        "of a file that was put": put["download_url"],
        "of a chart": report["artifacts"][0]["download_url"],
        "of a listed file": listed["artifacts"][0]["download_url"],
        "of all files": listed["download_all_url"],
        "of a file in the list over HTTP": json.loads(body)["artifacts"][0]["download_url"],
    }
    for what, url in urls.items():
        status, _, body = ask("GET", url, token=None)
        good = url.startswith(f"{BASE}/files/") and status == 200 and len(body) > 0
        check(f"The address {what} starts with {BASE} and opens", good, (url, status))
    url = upload["upload_url"]
    status, _, _ = ask("PUT", url, b"later", token=None)
    check(f"So does the one for an upload", url.startswith(f"{BASE}/files/") and status == 201, (url, status))

    status, _, _ = ask("GET", f"/files/{session}/sales.csv", token=None)
    check("A file does not open without token and signature", status == 401, status)
    status, _, _ = ask("GET", "/health", token=None, headers={"Host": "evil.test"})
    check("It goes by no name that is not its own", status == 421, status)
    closed = mcp.call("close_session", session_id=session)["structuredContent"]
    check("The session is closed", closed["status"] == "closed", closed)
    status, _, _ = ask("GET", urls["of a chart"], token=None)
    check("Its addresses end with it", status == 404, status)


def leave(name):
    mcp = Mcp()
    mcp.call("run_python", session_id=name, code="open('a.txt', 'w').write('a')")
    try:
        mcp.call("run_python", session_id=name, code="while True: print(1)")
    except OSError:
        # The server was killed.
        pass


if len(sys.argv) > 2:
    leave(sys.argv[2])
else:
    whole_session()
