"""Starts a server over stdio as a client does, and runs a program in a sandbox of it.

    first_result.py COMMAND [ARGUMENT]...

Needs nothing but the standard library. Exit code 0: the program's result came back.
"""

import json
import subprocess
import sys

PROGRAM = "import pandas as pd\nprint(pd.Series([20, 22]).sum())"


def main() -> None:
    """One session of MCP: initialize, list the tools, run a program."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin and server.stdout

    def send(message: dict) -> None:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()

    def ask(number: int, method: str, params: dict) -> dict:
        send({"id": number, "method": method, "params": params})
        for line in server.stdout:
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return message["result"]
        raise SystemExit(f"the server ended before it answered {method}")

    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    found = ask(1, "initialize", hello)["serverInfo"]
    send({"method": "notifications/initialized"})
    tools = {tool["name"] for tool in ask(2, "tools/list", {})["tools"]}
    assert "run_python" in tools, tools
    result = ask(3, "tools/call", {"name": "run_python", "arguments": {"code": PROGRAM}})
    text = json.dumps(result)
    assert not result.get("isError") and "42" in result["content"][0]["text"], text
    server.stdin.close()
    assert server.wait(30) == 0
    print(f"run_python of {found['name']} {found['version']}: 42")


main()
