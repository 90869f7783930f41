"""Calls each of the tools here once, as a client over stdio does, and checks what comes back.

The tool pi is not there at first: its source is compiled by clang, which is a tool itself, and linked by another.
"""

import argparse
import base64
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "out"


class Server:
    """A server with these tools and no others."""

    def __init__(self, program: str, tools: pathlib.Path) -> None:
        settings = {"SANDBOX_TOOLS_FILE": str(tools), "SANDBOX_TOOLSETS": "own", "SANDBOX_LOG_FILE": ""}
        settings |= {"SANDBOX_LOG_LEVEL": "ERROR", "SANDBOX_HTTP_PORT": "0"}
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | settings, text=True
        )
        self.number = 0
        client = {"name": "demo", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.request("initialize", hello)
        self.send({"method": "notifications/initialized"})

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict) -> dict:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.number:
                return answer["result"]
        sys.exit("The server has ended; what it said is above.")

    def call(self, tool: str, **arguments: object) -> tuple[dict, list[dict]]:
        """The result, and the blocks that come with it."""
        begun = time.perf_counter()
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        took = (time.perf_counter() - begun) * 1000
        if result["isError"]:
            sys.exit(f"{tool}: {result['content'][0]['text']}")
        told = result["structuredContent"]
        first = next(iter((told["stdout"] or told["stderr"]).splitlines()), "")
        print(f"  {took:7.1f} ms  {tool:13} exit code {told['exit_code']}  {first}", flush=True)
        return told, result["content"]


def files(blocks: list[dict]) -> dict[str, bytes]:
    """Files that came as resources, by name."""
    resources = [block["resource"] for block in blocks if block["type"] == "resource"]
    return {it["uri"].removeprefix("file:///"): base64.b64decode(it["blob"]) for it in resources}


def expect(told: dict, stdout: str) -> None:
    if told["stdout"] != stdout or told["exit_code"] != 0:
        sys.exit(f"expected {stdout!r}, and it was {told}")


def compile_pi(program: str) -> None:
    """Compiles and links pi.c, both in sandboxes."""
    print("pi.c becomes a program, in two sandboxes:")
    with Server(program, HERE / "c.json") as server:
        _, blocks = server.call("compile_c", code=(HERE / "pi.c").read_text())
        (OUT / "objects" / "pi.o").write_bytes(files(blocks)["main.o"])
        _, blocks = server.call("link_c", object="pi.o")
        (OUT / "pi.wasm").write_bytes(files(blocks)["main.wasm"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="the program")
    program = parser.parse_args().server
    compile_pi(program)
    print("each tool, called twice:")
    with Server(program, HERE) as server:
        names = [tool["name"] for tool in server.request("tools/list", {})["tools"]]
        known = ["compile_c", "hello", "link_c", "php", "pi", "python3-slim", "sqlite"]
        if sorted(names) != known:
            sys.exit(f"other tools are listed than there are: {names}")
        for _ in range(2):
            told, _ = server.call("hello")
            expect(told, "Hello, world!\n")
            told, _ = server.call("pi", n=20)
            expect(told, "3.141592653589793\n")
            sql = "select region, sum(revenue) as revenue from data group by region order by 2 desc;"
            told, _ = server.call("sqlite", sql=sql, csv="region,revenue\nNorth,10\nSouth,7\nNorth,5\n")
            expect(told, "region,revenue\nNorth,15\nSouth,7\n")
            script = "<?php file_put_contents('/mnt/data/note.txt', strtoupper($_ENV['INPUT'])); echo PHP_VERSION;"
            told, _ = server.call("php", code=script, input="a note")
            expect(told, "8.2.0")
            assert told["artifacts"][0]["text"] == "A NOTE", told
            code = "import math\nopen('/digits.txt', 'w').write(str(math.factorial(30)))\nprint(2**0.5)"
            told, _ = server.call("python3-slim", code=code)
            expect(told, "1.4142135623730951\n")
            assert told["artifacts"][0]["text"] == "265252859812191058636308480000000", told
            told, _ = server.call("compile_c", code="int main() { return forty_two; }")
            assert told["exit_code"] == 1 and "undeclared identifier" in told["stderr"], told
    print("All answers were as expected.")


if __name__ == "__main__":
    main()
