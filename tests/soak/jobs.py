"""The jobs of the soak's callers: each is a call or two, and the answer that they must have.

A job gets a `Caller`, which owns a session, and raises `Wrong` if an answer is wrong. Any job can follow any other in
the same session, so none relies on the files of an earlier one, except for `kept`, which every session must have until
it is closed.
"""

import base64
import os
import urllib.error
import urllib.request


class Wrong(Exception):
    """An incorrect answer."""


def right(holds, *about):
    if not holds:
        raise Wrong(*about)


def run(caller, code, outcome="ok", timeout_s=20):
    error, answer = caller.call("run_python", code=code, timeout_s=timeout_s)
    right(error is None and answer["outcome"] == outcome, outcome, error, answer)
    return answer


def refused(code, answer):
    right(answer[0] == code, code, answer)


def read(caller, path):
    content, offset = b"", 0
    while offset is not None:
        error, answer = caller.call("read_artifact", path=path, format="base64", offset=offset, length=350_000)
        right(error is None, path, answer)
        content += base64.b64decode(answer["content_base64"])
        offset = answer.get("next_offset")
    return content


def prints(caller):
    number = caller.random.randrange(10**9)
    right(run(caller, f"print({number} + 1)")["stdout"] == f"{number + 1}\n")


def fails(caller):
    right("ZeroDivisionError" in run(caller, "1/0", "error")["stderr"])


def round_trip(caller):
    content = caller.random.randbytes(caller.random.choice([0, 1, 1000, 1_048_576, 3_000_000]))
    error, answer = caller.upload("folder/up.bin", content, overwrite=True)
    right(error is None and answer["size_bytes"] == len(content), answer)
    right(read(caller, "folder/up.bin") == content)


def uploads_twice(caller):
    caller.upload("twice", b"1", overwrite=True)
    refused("file_exists", caller.upload("twice", b"2"))
    right(read(caller, "twice") == b"1")


def makes_files(caller):
    answer = run(caller, "for n in range(50): open(f'made {n}', 'w').write(str(n))")
    right(len(answer["artifacts"]) == 50, answer)
    run(caller, "import os\nfor n in range(50): os.remove(f'made {n}')")


def url_of(listed, name):
    """The address of a file's download, from a listing."""
    [file] = [file for file in listed["artifacts"] if file["filename"] == name]
    return file.get("download_url") or listed["download_url_template"].replace("{filename}", name)


def lists(caller):
    error, answer = caller.call("list_artifacts")
    right(error is None and "kept" in [file["filename"] for file in answer["artifacts"]], answer)


def downloads(caller):
    content = caller.random.randbytes(200_000)
    caller.upload("down.bin", content, overwrite=True)
    _, answer = caller.call("list_artifacts")
    url = url_of(answer, "down.bin")
    with urllib.request.urlopen(url, timeout=60) as response:
        right(response.read() == content)
    # A client that does not wait for the end.
    with urllib.request.urlopen(url, timeout=60) as response:
        response.read(10)
    try:
        path, _, signature = url.partition("?")
        urllib.request.urlopen(f"{path}%2f..%2f..?{signature}", timeout=60).close()
        right(False, "a traversal was served")
    except urllib.error.HTTPError as error:
        # The signature is for another path, and a caller without a token gets no further information.
        right(error.code in (400, 401, 403, 404), error.code)


def draws(caller):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('chart.png')"
    right([file["filename"] for file in run(caller, code, timeout_s=60)["artifacts"]] == ["chart.png"])
    error, answer = caller.call("read_artifact", path="chart.png")
    right(error is None and "content_base64" not in answer and answer["mime_type"] == "image/png", answer)


def loops(caller):
    answer = run(caller, "print('before', flush=True)\nwhile True: pass", "timeout", 1)
    right(answer["stdout"] == "before\n" and answer["exit_code"] == -1, answer)


def exhausts_memory(caller):
    right("limit 512MB" in run(caller, "x = b'x' * 10**9", "out_of_memory")["stderr"])


def bombs(caller):
    run(caller, "import os\nif os.fork() == 0:\n    while True:\n        try: os.fork()\n        except OSError: pass")


def leaves_daemons(caller):
    run(caller, "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(999)\n    os._exit(0)")


def kills_everything(caller):
    code = """
import os, subprocess
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
subprocess.Popen(['sleep', '99'])
os.kill(-1, 9)
"""
    run(caller, code)


def floods(caller):
    code = "import os\nfor _ in range(20): os.write(1, b'x' * 10**6); os.write(2, b'y' * 10**6)"
    answer = run(caller, code)
    right(answer.get("stdout_truncated") and answer.get("stderr_truncated") and len(answer["stdout"]) < 110_000)


def fills_everything(caller):
    code = """
for place in '/mnt/data', '/tmp', '/dev/shm':
    try:
        with open(place + '/fill', 'wb', 0) as file:
            while file.write(bytes(10**6)): pass
    except OSError as error: print(place, error.strerror)
"""
    full = "".join(f"{place} No space left on device\n" for place in ("/mnt/data", "/tmp", "/dev/shm"))
    answer = run(caller, code)
    right(answer["stdout"] == full, answer)
    # Uploads take the space of outputs that are kept for read_output: 16 MiB of each of the last four runs.
    uploads = (caller.upload(f"more {number}", bytes(10_000_000), overwrite=True) for number in range(7))
    refused("quota_exceeded", next(answer for answer in uploads if answer[0]))
    run(caller, "import glob, os\nfor name in 'fill', *glob.glob('more *'): os.remove(name)")


def breaks_its_places(caller):
    code = "import os\nos.remove('/tmp/main.py'); os.makedirs('/tmp/main.py/x'); os.chmod('/tmp/main.py', 0)\nos.chmod('/mnt/data', 0)"
    run(caller, code)


def leaves_odd_files(caller):
    code = """
import os
os.makedirs('odd', exist_ok=True); os.chdir('odd')
for name in os.listdir(): os.remove(name)
os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); open(b'\\xff', 'w'); open('line\\nbreak', 'w')
os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 10**7)
"""
    run(caller, code)
    refused("invalid_path", caller.call("read_artifact", path="odd/link"))
    refused("not_found", caller.call("read_artifact", path="odd/fifo"))
    error, answer = caller.call("read_artifact", path="odd/sparse")
    right(error is None and answer["kind"] == "binary data", answer)
    refused("invalid_filename", caller.upload("odd/link/a", b""))


def misspells(caller):
    refused("invalid_filename", caller.upload("../up", b""))
    refused("invalid_path", caller.call("read_artifact", path="/etc/passwd"))
    refused("not_found", caller.call("read_artifact", path=f"missing {caller.random.random()}"))
    refused("invalid_base64", caller.call("upload_file", filename="a", content_base64="A"))
    refused("invalid_argument", caller.call("run_python", code=7))
    refused("invalid_argument", caller.call("run_python", code="1", timeout_s="soon"))
    refused("invalid_argument", caller.call("list_artifacts", more=1))
    refused("code_too_large", caller.call("run_python", code="#" * 100_001))
    refused("invalid_session_id", caller.server.call("list_artifacts", session_id="a/b"))
    refused("session_not_found", caller.server.call("list_artifacts", session_id="nobody-has-this"))
    refused(-32602, caller.server.call("no_such_tool"))


def sends_nonsense(caller):
    for line in (b"", b"{", b"[" * 50_000, b"\xff\xfe", b'{"id":{}}', os.urandom(500).replace(b"\n", b"")):
        caller.server.send_line(line)


def uploads_too_much(caller):
    encoded = "A" * 66_700_000
    refused("upload_too_large", caller.call("upload_file", filename="big", content_base64=encoded))


def asks_for_too_many_sessions(caller):
    for more in ({"session_id": f"{caller.session}-more"}, {}):
        error, answer = caller.server.call("run_python", code="1", **more)
        right(error in ("max_sessions", None), answer)
        if not error:
            # Another caller, between two of its sessions, needs the place.
            caller.server.call("close_session", session_id=answer["session_id"])


def is_busy_and_cancels(caller):
    arguments = {"session_id": caller.session, "code": "open('busy', 'w')\nwhile True: pass", "timeout_s": 60}
    request, _ = caller.server.start("tools/call", {"name": "run_python", "arguments": arguments})
    while "busy" not in [file["filename"] for file in caller.call("list_artifacts")[1]["artifacts"]]:
        pass
    refused("session_busy", caller.call("run_python", code="1"))
    cancel = {"requestId": request, "reason": "soak"}
    caller.server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel})
    caller.server.forget(request)
    run(caller, "import os; os.remove('busy')")


def starts_over(caller):
    """Closes the session and starts another, under the same name or a new one."""
    error, answer = caller.server.call("close_session", session_id=caller.session)
    right(error is None and answer["status"] == "closed", answer)
    refused("session_not_found", caller.call("list_artifacts"))
    caller.begin()


def dies(caller):
    """Kills the session's container."""
    caller.kill_container()
    error, answer = caller.call("run_python", code="print(1)")
    # The server notices it during the call, or before it: then the call starts a new session of this name, if
    # there is a place for it already.
    right(error in ("sandbox_died", "max_sessions", None), answer)
    if error:
        refused("session_not_found", caller.call("list_artifacts"))
    else:
        caller.server.call("close_session", session_id=caller.session)
    caller.begin()


# Each job and how often it comes up.
JOBS = {
    prints: 30, fails: 10, round_trip: 15, uploads_twice: 10, makes_files: 5, lists: 15, downloads: 10,
    draws: 2, loops: 3, exhausts_memory: 2, bombs: 2, leaves_daemons: 3, kills_everything: 3, floods: 2,
    fills_everything: 1, breaks_its_places: 3, leaves_odd_files: 3, misspells: 10, sends_nonsense: 3,
    uploads_too_much: 0.2, asks_for_too_many_sessions: 5, is_busy_and_cancels: 3, starts_over: 4, dies: 1,
}
