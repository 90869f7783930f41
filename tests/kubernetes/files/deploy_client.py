"""What a client does over MCP.

    deploy_client.py <URL of the server> <token> run     a program in a session, and the file that it made
    deploy_client.py <URL of the server> <token> begin   a session that remembers something
    deploy_client.py <URL of the server> <token> go-on   the same session, which must remember it"""

import json
import sys
import urllib.request

base, token, task = sys.argv[1:]
session = {}


def ask(path, message=None):
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        **session,
    }
    body = None if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
    with urllib.request.urlopen(urllib.request.Request(base + path, body, headers), timeout=150) as answer:
        if "Mcp-Session-Id" in answer.headers:
            session["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
        return answer.read().decode()


def call(number, tool, arguments):
    said = ask("/mcp", {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
    result = json.loads(said)["result"]
    assert not result.get("isError"), result
    return result["structuredContent"]


client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "deploy-test", "version": "1"}}
ask("/mcp", {"id": 1, "method": "initialize", "params": client})
ask("/mcp", {"method": "notifications/initialized"})
if task == "run":
    ran = call(2, "run_python", {"code": "import pandas\nopen('a.txt', 'w').write('from a pod')\nprint(6 * 7)"})
    assert ran["exit_code"] == 0 and ran["stdout"] == "42\n", ran
    assert ask(f"/files/{ran['session_id']}/a.txt") == "from a pod"
    call(3, "close_session", {"session_id": ran["session_id"]})
elif task == "begin":
    ran = call(2, "execute_code", {"session_id": "deploy-test", "code": "number = 6 * 7"})
    assert ran["status"] == "success", ran
elif task == "go-on":
    ran = call(2, "execute_code", {"session_id": "deploy-test", "code": "number"})
    assert ran["result"] == "42", ran
    call(3, "close_session", {"session_id": "deploy-test"})
else:
    sys.exit(__doc__)
