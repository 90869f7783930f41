"""A server of MCP over standard input and output that misbehaves when it is told to. It needs no packages.

Usage: server.py GENERATION [FOLDER] [MORE]. FOLDER, if it is not empty, gets a file for each start and each cancelled
call. MORE is the number of tools that it has besides. GENERATION is old (initialize), new (server/discover), mute
(answers no request that it does not know), fragile (ends at one), silent (answers nothing), unlisted (answers all but
the request for its tools), chatty (writes a line before its first message) or banner (writes lines that are no messages
without end).
"""

import base64
import json
import os
import subprocess
import sys
import threading
import time
import uuid

GENERATION = sys.argv[1]
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
VERSION = "2026-07-28"
lock = threading.Lock()
MORE = int(sys.argv[3]) if len(sys.argv) > 3 else 0
added = []
subscriptions = []


def note(name):
    if FOLDER:
        open(os.path.join(FOLDER, f"{name}-{uuid.uuid4()}"), "w").close()


def send(message):
    write(json.dumps({"jsonrpc": "2.0", **message}))


def write(line):
    with lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def tool(name, properties=None, required=(), read_only=True, **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {
        "name": name,
        "description": f"The tool {name}.\nMore about it.",
        "inputSchema": schema,
        "annotations": {"readOnlyHint": read_only},
        **more,
    }


TEXT = {"text": {"type": "string"}}
SIZE = {"bytes": {"type": "integer"}, "last": {"type": "boolean"}}
TOOLS = [
    tool("echo", TEXT, ["text"], title="Repeats a text"),
    tool("structured"),
    tool("image"),
    tool("many"),
    tool("fail"),
    tool("environment"),
    tool("slow"),
    tool("die"),
    tool("die_writing", read_only=False),
    tool("garbage"),
    tool("wrong"),
    tool("huge", SIZE, ["bytes"]),
    tool("endless"),
    tool("change"),
    tool("child"),
    tool("create_contact", TEXT, read_only=False),
    tool("update_contact", TEXT, read_only=False),
    tool("delete_contact", TEXT, read_only=False),
    tool("no hint\n", read_only=True),
    *(tool(f"more_{number}", TEXT, ["text"]) for number in range(MORE)),
]


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(id, name, given):
    if name == "echo":
        return text(given["text"])
    if name == "structured":
        return {**text("{}"), "structuredContent": {"rows": [1, 2]}}
    if name == "image":
        data = base64.b64encode(b"\x89PNG pixels").decode()
        return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    if name == "many":
        link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
        return {"content": [*text('[{"a": 1}]')["content"], *text("{no json")["content"], link]}
    if name == "fail":
        return {**text("no such contact"), "isError": True}
    if name == "environment":
        return text(json.dumps(dict(os.environ)))
    if name == "child":
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return text(json.dumps([child.pid, os.getpid()]))
    if name in ("create_contact", "update_contact", "delete_contact"):
        note(name)
        return None if given.get("text") == "and no answer" else text("done")
    if name == "change":
        added.append(tool(f"added_{len(added)}"))
        changed = {"method": "notifications/tools/list_changed"}
        if GENERATION == "new":
            for subscription in subscriptions:
                meta = {"io.modelcontextprotocol/subscriptionId": subscription}
                send({**changed, "params": {"_meta": meta}})
        else:
            send(changed)
        return text("changed")
    if name == "slow":
        note("slow")
        return None
    if name in ("die", "die_writing"):
        print("a last word", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "garbage":
        for line in ("not JSON", "{", '{"jsonrpc": "2.0"}', "[]", "\x00\xff"):
            write(line)
        return None
    if name == "wrong":
        write(json.dumps({"jsonrpc": "2.0", "id": id, "result": "x", "error": 1}))
        return None
    if name == "huge":
        result = text("x" * given["bytes"])
        if given.get("last"):
            write(json.dumps({"result": result, "jsonrpc": "2.0", "id": id}))
            return None
        return result
    if name == "endless":
        with lock:
            while True:
                sys.stdout.write("x" * 1_000_000)
    return None


def answer(message):
    if GENERATION in ("silent", "banner"):
        return
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    capabilities = {"tools": {"listChanged": True}}
    if method == "notifications/cancelled":
        note("cancelled")
        return
    if id is None:
        return
    error = None
    if method == "server/discover" and GENERATION == "new":
        result = {"supportedVersions": [VERSION], "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}
    elif method == "initialize" and GENERATION != "new":
        info = {"name": "test", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
    elif method == "subscriptions/listen":
        subscriptions.append(id)
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        send(
            {
                "method": "notifications/subscriptions/acknowledged",
                "params": {"_meta": meta, "notifications": params["notifications"]},
            }
        )
        return
    elif method == "tools/list":
        note("listed")
        if GENERATION == "unlisted":
            return
        tools = TOOLS + added
        at = int(params.get("cursor") or 0)
        result = {"tools": tools[at : at + 10]}
        if at + 10 < len(tools):
            result["nextCursor"] = str(at + 10)
        if GENERATION == "new":
            result |= {"ttlMs": 60_000, "cacheScope": "private"}
    elif method == "tools/call":
        result = call(id, params["name"], params.get("arguments", {}))
        if result is None:
            return
    elif GENERATION == "mute":
        return
    elif GENERATION == "fragile":
        os._exit(1)
    else:
        error = {"code": -32601, "message": f"{method} is not known"}
    if error:
        send({"id": id, "error": error})
    else:
        send({"id": id, "result": {"resultType": "complete", **result} if GENERATION == "new" else result})


note("started")
if GENERATION == "chatty":
    write("Starting ...")
while GENERATION == "banner":
    print("a last word", file=sys.stderr, flush=True)
    try:
        write("Listening on port 8080")
    except OSError:
        os._exit(0)
for line in sys.stdin:
    answer(json.loads(line))
time.sleep(0)
