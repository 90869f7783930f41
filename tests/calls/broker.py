"""A server of calls as a sandbox sees it: answers requests of the modules `tools` on a socket, with tools of its own.

    python3 broker.py NAME      serves the abstract socket of this name; prints a line when it listens

A test in Python starts it in a thread (`Broker`). It counts connections and calls, and can close what is open, as the
agent does at the end of a run.
"""

import json
import os
import socket
import sys
import threading
import time

ANY = {"type": "object"}
UPSTREAMS = [
    {"name": "crm", "description": "Customers", "kind": "mcp"},
    {"name": "my-files", "description": "Files", "kind": "mcp"},
    {"name": "weather", "description": "The weather", "kind": "http"},
    {"name": "wiki", "description": "Pages", "kind": "mcp", "unavailable": "wiki: its process has ended"},
]
PATH = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "begins with /"},
        "params": ANY, "headers": ANY, "json": {}, "body": {"type": "string"},
    },
    "required": ["path"],
    "additionalProperties": False,
}  # fmt: skip


def tool(name, properties=None, required=(), description="", **more):
    schema = {"type": "object", "properties": properties or {}, "required": [*required]}
    return {"name": name, "description": description, "input_schema": schema, "read_only": True, "rights": "allowed", **more}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS = {
    "crm": [
        tool(
            "search_contacts",
            {
                "query": {"type": "string", "description": "words of the name"},
                "limit": {"type": "integer", "default": 20},
                "sort": {"type": "string", "enum": ["name", "newest"]},
                "from": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            ["query"],
            "Finds contacts.\nBest first.",
        ),
        tool("listContacts", {"cursor": TEXT, "pageSize": NUMBER}),
        tool("search-deals", {"a": TEXT, "b": NUMBER}, ["a", "b"]),
        tool(
            "import",
            {"data": {}, **{f"option_{n}": {"type": ["array", "null"], "items": TEXT} for n in range(20)}},
            ["data"],
            "Imports records " + "of several kinds " * 20,
        ),
        tool("delete_all", rights="ask"),
        tool("secret", rights="denied"),
        tool("echo", {"value": {}}, ["value"]),
        tool("fail", {"kind": TEXT, "message": TEXT}, ["kind"]),
        tool("several"),
        tool("nothing"),
        tool("slow", {"seconds": {"type": "number"}}, ["seconds"]),
        tool("counted"),
        tool("hang_up"),
        tool("garbage"),
        tool("file", {"path": TEXT, "mime_type": TEXT}, ["path"]),
    ],
    "my-files": [tool("read.file", {"path": TEXT}, ["path"]), tool("read-file"), tool("read_file")],
    "weather": [
        {"name": name, "description": f"{name.upper()} of allowed paths", "input_schema": PATH, "read_only": name == "get", "rights": "allowed"}
        for name in ("get", "post")
    ],
}


class Broker:
    def __init__(self, name=None):
        self.name = name or f"llm-sandbox-test-{os.getpid()}-{id(self):x}"
        self.open, self.requests, self.connections, self.now, self.most, self.ended = set(), [], 0, 0, 0, 0
        self.lock = threading.Lock()
        # Node 20 fills up the name with zeros; that is another name.
        for name in self.name, self.name.ljust(107, "\0"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind("\0" + name)
            listener.listen(64)
            threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            connection, _ = listener.accept()
            self.connections += 1
            self.open.add(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def end_run(self):
        for connection in [*self.open]:
            connection.shutdown(socket.SHUT_RDWR)

    def serve(self, connection):
        with connection:
            while head := self.read(connection, 4):
                request = json.loads(self.read(connection, int.from_bytes(head, "little")))
                with self.lock:
                    self.requests.append(request)
                    self.now += 1
                    self.most = max(self.most, self.now)
                answer = self.answer(request, connection)
                with self.lock:
                    self.now -= 1
                if answer is None:
                    break
                if not isinstance(answer, bytes):
                    answer = json.dumps(answer).encode()
                try:
                    connection.sendall(len(answer).to_bytes(4, "little") + answer)
                except OSError:
                    break
        self.ended += 1
        self.open.discard(connection)

    @staticmethod
    def read(connection, length):
        got = b""
        while len(got) < length:
            try:
                chunk = connection.recv(length - len(got))
            except OSError:
                return b""
            if not chunk:
                return b""
            got += chunk
        return got

    def answer(self, request, connection):
        def failed(kind, message):
            return {"error": {"kind": kind, "message": message}}

        op, upstream = request["op"], request.get("upstream")
        if op == "list":
            if request.get("brief"):
                return {"value": UPSTREAMS}
            counts = {name: {"tools": len(all)} for name, all in TOOLS.items()}
            return {"value": [{**one, **counts.get(one["name"], {})} for one in UPSTREAMS]}
        if op == "search":
            found = [(name, one) for name, all in TOOLS.items() for one in all if request["query"] in one["name"]]
            lines = [{"upstream": name, "name": one["name"], "description": one["description"].partition("\n")[0]} for name, one in found]
            return {"value": lines[: request["limit"]]}
        if upstream not in TOOLS:
            return failed("unknown_upstream", f"no upstream {upstream}")
        if op == "tools":
            return {"value": TOOLS[upstream]}
        name, arguments = request["tool"], request["arguments"]
        if name not in [one["name"] for one in TOOLS[upstream]]:
            return failed("unknown_tool", f"no tool {name}")
        act = getattr(self, f"do_{name}", None)
        if act is not None:
            return act(connection, failed, **arguments)
        return {"items": [{"value": {"tool": name, **arguments}}]}

    def do_search_contacts(self, connection, failed, query, limit=20, **more):
        rows = [{"id": number, "name": f"{query} {number}"} for number in range(limit)]
        return {"items": [{"value": {"contacts": rows, "total": 100, **more}}]}

    def do_listContacts(self, connection, failed, cursor="0", pageSize=2):
        next_one = int(cursor) + 1
        page = {"contacts": [{"id": int(cursor) * pageSize + n} for n in range(pageSize)]}
        return {"items": [{"value": {**page, "nextCursor": str(next_one) if next_one < 3 else None}}]}

    def do_echo(self, connection, failed, value):
        return {"items": [{"value": value}]}

    def do_fail(self, connection, failed, kind, message="it went wrong"):
        return failed(kind, message)

    def do_several(self, connection, failed):
        return {"items": [{"value": "text"}, {"file": {"path": "/mnt/data/calls/a.png", "mime_type": "image/png", "bytes": 3}}]}

    def do_nothing(self, connection, failed):
        return {"items": []}

    def do_slow(self, connection, failed, seconds):
        time.sleep(seconds)
        return {"items": [{"value": seconds}]}

    def do_counted(self, connection, failed):
        return {"items": [{"value": {"connections": self.connections, "most": self.most, "ended": self.ended}}]}

    def do_hang_up(self, connection, failed):
        return None

    def do_garbage(self, connection, failed):
        return b"<html>"

    def do_file(self, connection, failed, path, mime_type="text/csv"):
        return {"items": [{"file": {"path": path, "mime_type": mime_type, "bytes": os.path.getsize(path)}}]}


if __name__ == "__main__":
    Broker(sys.argv[1])
    print("ready", flush=True)
    # Until the test that has started it ends.
    sys.stdin.read()
