"""Drives the drill of tests/exhaustion.sh: the attacks of one caller, and the work of another."""

import asyncio
import base64
import itertools
import json
import os
import re
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

LIMIT_MB = 256
# The most above its idle memory, which is 23 MB for a release build and more for others: so a release build stays
# under 160 MB.
PEAK_MB = 137
BACK_MB = 32
BACK_S = 30
# The longest that a request of the other caller may wait during `trickled_sockets`; checked only in a drill of at
# least WHOLE_S seconds.
PROMPT_S = 1.0
WHOLE_S = 30
PATIENCE_S = 30
NAME = f"llm-sandbox-exhaustion-{os.getpid()}"
VERSION = "2025-11-25"


class Failed(Exception):
    """A request of the other caller failed."""


# --- the server ----------------------------------------------------------------------------------


class Server:
    """The program in a container of its own, with LIMIT_MB of memory."""

    def __init__(self, binary):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.tokens = {name: secrets.token_hex(16) for name in ("attacker", "worker")}
        settings = {
            "SANDBOX_TRANSPORT": "http",
            "SANDBOX_HTTP_PORT": self.port,
            "SANDBOX_AUTH_TOKENS": ",".join(f"{name}:{token}" for name, token in self.tokens.items()),
            "SANDBOX_MAX_SESSIONS_PER_CLIENT": 5,
            "SANDBOX_LOG_FILE": "",
            "SANDBOX_LOG_LEVEL": "WARN",
            "DOCKER_HOST": "unix:///engine.sock",
        }
        engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        self.docker(
            "run", "--detach", "--name", NAME, "--network", "host", "--pid", "host",
            f"--memory={LIMIT_MB}m", f"--memory-swap={LIMIT_MB}m", "--ulimit", "nofile=8192:8192",
            "--volume", f"{binary}:/llm-sandbox:ro", "--volume", f"{engine}:/engine.sock",
            *(f"--env={name}={value}" for name, value in settings.items()),
            "debian:trixie-slim", "/llm-sandbox",
        )  # fmt: skip
        self.pid = int(self.docker("inspect", "--format", "{{.State.Pid}}", NAME))

    def caller(self, name):
        return Caller(self.port, self.tokens[name])

    def docker(self, *arguments):
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"docker {arguments[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    def memory_mb(self, what):
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        return int(re.search(rf"{what}:\s+(\d+)", status)[1]) * 1024 / 1e6

    def forget_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def is_killed(self):
        return self.docker("inspect", "--format", "{{.State.OOMKilled}} {{.State.Running}}", NAME) != "false true"

    def stop(self):
        self.docker("stop", "--time", "15", NAME)
        log = subprocess.run(["docker", "logs", NAME], capture_output=True, text=True, check=False).stderr
        self.docker("rm", "--force", NAME)
        return log


# --- requests ------------------------------------------------------------------------------------


class Caller:
    """A client that writes its own HTTP, so that it can also send invalid requests."""

    def __init__(self, port, token):
        self.port = port
        self.token = token

    def head(self, method, target, length=None, **headers):
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Authorization: Bearer {self.token}"]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def post(self, length, **headers):
        accept = "application/json, text/event-stream"
        return self.head("POST", "/mcp", length, accept=accept, content_type="application/json", **headers)

    @asynccontextmanager
    async def connected(self, window=None):
        sock = socket.socket()
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=window or 1 << 16)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, head, body=b""):
        """Sends one request on a connection of its own; returns status, headers and body."""
        async with self.connected() as (reader, writer):
            writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
            await writer.drain()
            answer = await reader.read()
        top, _, rest = answer.partition(b"\r\n\r\n")
        lines = top.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        if headers.get("transfer-encoding") == "chunked":
            rest = unchunked(rest)
        return int(lines[0].split(" ")[1]), headers, rest

    async def initialize(self, name="drill"):
        client = {"name": name, "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        body = rpc("initialize", params)
        return await self.ask(self.post(len(body)), body)

    async def session(self):
        """Opens an MCP session; returns the headers that name it."""
        status, headers, answer = await self.initialize()
        if status != 200:
            raise Failed(f"initialize: {status} {answer[:200]}")
        return {"mcp_session_id": headers["mcp-session-id"], "mcp_protocol_version": VERSION}

    async def call(self, session, tool, **arguments):
        body = rpc("tools/call", {"name": tool, "arguments": arguments})
        status, _, answer = await self.ask(self.post(len(body), **session), body)
        if status != 200:
            raise Failed(f"{tool}: {status} {answer[:200]}")
        result = json.loads(answer)
        if "result" not in result or result["result"].get("isError"):
            raise Failed(f"{tool}: {str(result)[:300]}")
        return result["result"]["structuredContent"]


def unchunked(body):
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        size = int(size, 16)
        whole, body = whole + body[:size], body[size + 2 :]
    return whole


def rpc(method, params):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


# --- the other caller ----------------------------------------------------------------------------


async def work(caller, stop, waits):
    """Runs, uploads, lists, reads and downloads, with checks of each result, until `stop` is set."""
    mine = f"work_{os.getpid()}"
    rounds = 0

    async def timed(request):
        began = time.monotonic()
        answer = await request
        waits.append(time.monotonic() - began)
        return answer

    while not stop.is_set():
        session = await timed(caller.session())
        data = secrets.token_bytes(1 << 20)
        encoded = base64.b64encode(data).decode()
        file = {"filename": "a.bin", "content_base64": encoded, "overwrite": True}
        await timed(caller.call(session, "upload_file", session_id=mine, **file))
        run = await timed(caller.call(session, "run_python", session_id=mine, code=f"print({rounds} * 2)"))
        if run["stdout"] != f"{rounds * 2}\n":
            raise Failed(f"a wrong answer: {run}")
        listed = await timed(caller.call(session, "list_artifacts", session_id=mine))
        if [file["filename"] for file in listed["artifacts"]] != ["a.bin"]:
            raise Failed(f"a wrong list: {listed}")
        status, _, got = await timed(caller.ask(caller.head("GET", f"/files/{mine}/a.bin")))
        if (status, got) != (200, data):
            raise Failed(f"a wrong download: {status}, {len(got)} bytes")
        await caller.ask(caller.head("DELETE", "/mcp", **session))
        rounds += 1
    await caller.call(await caller.session(), "close_session", session_id=mine)
    return rounds


# --- the attacks ---------------------------------------------------------------------------------


async def again_and_again(attempt):
    """Repeats an attempt forever, whether it fails or not."""
    while True:
        try:
            await asyncio.wait_for(attempt(), PATIENCE_S)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, Failed, ValueError, IndexError):
            await asyncio.sleep(0.05)


async def many(number, attempt):
    await asyncio.gather(*(again_and_again(attempt) for _ in range(number)))


async def structure(caller):
    """Messages that take hundreds of bytes of memory for each of their bytes."""
    bombs = [b'{"":0},' * (size // 7) + b"0" for size in (100_000, 1_000_000, 8_000_000)]
    numbers = itertools.count(1)

    async def attempt():
        number = next(numbers)
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":[' + bombs[number % 3] + b"]}}"
        await caller.ask(caller.post(len(body)), body)

    await many(12, attempt)


async def bodies(caller):
    """A thousand bodies whose last byte is never sent."""
    body = b" " * ((1 << 20) - 1)

    async def attempt():
        async with caller.connected() as (reader, writer):
            writer.write(caller.post(1 << 20) + body)
            await reader.read(1)

    await many(1000, attempt)


async def trickled_bodies(caller):
    """Bodies of the largest size, whose last part is sent byte by byte."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"upload_file","arguments":{"content_base64":"'
    body += b"QUJD" * 16_000_000

    async def attempt():
        async with caller.connected() as (reader, writer):
            writer.write(caller.post(len(body) + 10_000) + body)
            await writer.drain()
            while not reader.at_eof():
                writer.write(b"A")
                await asyncio.sleep(1)

    await many(6, attempt)


async def uploads(caller):
    """Whole files of fifty megabytes, several at once."""
    content = base64.b64encode(bytes(50_000_000)).decode()
    arguments = {"session_id": f"up_{os.getpid()}", "filename": "a", "content_base64": content, "overwrite": True}
    body = rpc("tools/call", {"name": "upload_file", "arguments": arguments})
    session = await caller.session()

    async def attempt():
        await caller.ask(caller.post(len(body), **session), body)

    await many(4, attempt)


async def with_files(caller):
    """A session with the largest number of files, with long names."""
    session, mine = await caller.session(), f"files_{os.getpid()}"
    code = "for n in range(15_000): open(f'{n:0>200}ü', 'w').close()"
    await caller.call(session, "run_python", session_id=mine, code=code)
    return session, mine


async def listings(caller):
    """Listings and archives of very many files, which the client does not read."""
    _, mine = await with_files(caller)
    targets = [f"/files/{mine}/", f"/sessions/{mine}", f"/files/{mine}/?format=zip", f"/files/{mine}/?format=json"]
    numbers = itertools.count(1)

    async def attempt():
        number = next(numbers)
        async with caller.connected(window=4096) as (reader, writer):
            writer.write(caller.head("GET", targets[number % 4]))
            await reader.readexactly(12)
            await asyncio.sleep(20)

    await many(200, attempt)


async def answers(caller):
    """Answers that the client does not read, and calls that it abandons."""
    session, mine = await with_files(caller)
    code = "open('0.txt', 'w').write('x' * 900_000)\nprint('x' * 90_000)"
    await caller.call(session, "run_python", session_id=mine, code=code)
    calls = [
        {"name": "list_artifacts", "arguments": {"session_id": mine}},
        {"name": "read_artifact", "arguments": {"session_id": mine, "path": "0.txt", "format": "base64", "length": 300_000}},
        {"name": "run_python", "arguments": {"session_id": mine, "code": "print('x' * 90_000)"}},
    ]
    numbers = itertools.count(1)

    async def attempt():
        number = next(numbers)
        body = rpc("tools/call", calls[number % 3])
        async with caller.connected(window=4096) as (reader, writer):
            writer.write(caller.post(len(body), **session) + body)
            await reader.readexactly(12)
            if number % 2:
                await asyncio.sleep(20)

    await many(200, attempt)


async def initializes(caller):
    """MCP sessions that begin with long descriptions of the client and are never closed."""
    numbers = itertools.count(1)

    async def attempt():
        number = next(numbers)
        await caller.initialize("x" * (20_000_000 if number % 10 == 0 else 15_000))

    await many(8, attempt)


async def trickled_sockets(caller):
    """Two thousand connections without a token, on which a head is sent byte by byte."""

    async def attempt():
        async with caller.connected() as (reader, writer):
            for byte in b"GET /files/" + b"x" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                if reader.at_eof():
                    return
                await asyncio.sleep(1)

    await many(2000, attempt)


ATTACKS = [structure, bodies, trickled_bodies, uploads, listings, answers, initializes, trickled_sockets]


# --- the drill -----------------------------------------------------------------------------------


class Attack:
    """An attack in a process of its own, so that it does not use the processor time of the other caller's process."""

    def __init__(self, server, attack):
        self.arguments = ["--attack", attack.__name__, str(server.port)]
        self.token = server.tokens["attacker"]

    def __enter__(self):
        command = [sys.executable, __file__, *self.arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        self.process.stdin.write(self.token)
        self.process.stdin.close()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def has_ended(self):
        return self.process.poll() is not None


async def drill(server, attack, seconds):
    """Runs one attack; returns its mistakes, and its line in the table."""
    enough, waits, mistakes = asyncio.Event(), [], []
    idle = server.memory_mb("VmRSS")
    server.forget_peak()
    with Attack(server, attack) as attacking:
        working = asyncio.create_task(work(server.caller("worker"), enough, waits))
        await asyncio.wait([working], timeout=seconds)
        if attacking.has_ended():
            mistakes.append("the attack ended")
        enough.set()
        try:
            rounds = await asyncio.wait_for(working, PATIENCE_S)
        except (Failed, OSError, asyncio.TimeoutError, ValueError, IndexError) as error:
            rounds = 0
            mistakes.append(f"the other caller: {error!r}")
    if server.is_killed():
        raise SystemExit(f"{attack.__name__}: the server was killed")
    peak = server.memory_mb("VmHWM")
    ended = time.monotonic()
    while (left := server.memory_mb("VmRSS")) > server.idle + BACK_MB and time.monotonic() - ended < BACK_S:
        await asyncio.sleep(0.5)
    if peak > server.idle + PEAK_MB:
        mistakes.append(f"the peak was {peak:.0f} MB")
    if left > server.idle + BACK_MB:
        mistakes.append(f"{left:.0f} MB were left after {BACK_S} s")
    if attack is trickled_sockets and seconds >= WHOLE_S and max(waits, default=0) > PROMPT_S:
        mistakes.append(f"the other caller waited {max(waits):.2f} s")
    longest, median = max(waits, default=0), statistics.median(waits or [0])
    print(
        f"{attack.__name__:<18} other: {rounds:>4} rounds, {median * 1000:>5.0f} ms a request, {longest * 1000:>6.0f} at most;"
        f" memory {idle:>4.0f} MB before, {peak:>4.0f} peak, {left:>4.0f} after {time.monotonic() - ended:.0f} s",
        *mistakes,
        sep="\n    ",
        flush=True,
    )
    what = " ".join(attack.__doc__.split()).rstrip(".")
    withstood = "yes" if not mistakes else "**no**"
    waits_ms = (f"{median * 1000:.0f} ms", f"{longest * 1000:.0f} ms")
    return mistakes, [what, str(rounds), *waits_ms, *(f"{mb:.0f} MB" for mb in (idle, peak, left)), withstood]


def write(rows, idle, seconds):
    """Writes the table into the page of the documentation, also after mistakes."""
    root = next(folder for folder in Path(__file__).resolve().parents if (folder / "docs/measured.py").exists())
    sys.path.insert(0, str(root / "docs"))
    from measured import put

    head = [
        "attack", "the other caller's rounds", "its requests, median", "longest", "memory before", "at most", "after",
        "withstood",
    ]  # fmt: skip
    lines = (head, ["---"] + ["---:"] * (len(head) - 1), *rows)
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    when = f"{time.strftime('%Y-%m-%d')}, {seconds} s for each attack, {LIMIT_MB} MB; idle after some work: {idle:.0f} MB."
    put("docs/reliability.md", "exhaustion", f"{table}\n{when}")


async def main(binary, *arguments):
    seconds, *names = [argument for argument in arguments if argument != "--write"] or ["60"]
    attacks = [attack for attack in ATTACKS if not names or attack.__name__ in names]
    if len(attacks) < len(names):
        raise SystemExit(f"attacks are: {', '.join(attack.__name__ for attack in ATTACKS)}")
    server = Server(binary)
    mistakes, rows = [], []
    try:
        worker = server.caller("worker")
        for _ in range(600):
            try:
                if (await worker.ask(worker.head("GET", "/ready")))[0] == 200:
                    break
            except (OSError, IndexError):
                pass
            await asyncio.sleep(0.1)
        # The idle memory is measured after some work.
        waits, enough = [], asyncio.Event()
        working = asyncio.create_task(work(worker, enough, waits))
        await asyncio.sleep(3)
        enough.set()
        await working
        server.idle = server.memory_mb("VmRSS")
        print(f"idle: {server.idle:.0f} MB; limit {LIMIT_MB} MB; {seconds} s for each attack", flush=True)
        for attack in attacks:
            found, row = await drill(server, attack, float(seconds))
            mistakes += found
            rows.append(row)
        if "--write" in arguments:
            write(rows, server.idle, seconds)
    finally:
        log = server.stop()
        if mistakes:
            print(log[-2000:])
    print("failed" if mistakes else "Nothing of the other caller's failed.")
    return 1 if mistakes else 0


async def attack_for_ever(name, port):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    attack = next(attack for attack in ATTACKS if attack.__name__ == name)
    await attack(Caller(int(port), sys.stdin.read()))


if __name__ == "__main__":
    if sys.argv[1] == "--attack":
        asyncio.run(attack_for_ever(*sys.argv[2:]))
    sys.exit(asyncio.run(main(*sys.argv[1:])))
