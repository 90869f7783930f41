"""Runs and megabytes per second: eight sessions at the same time, one session without a pause, and large files.

Contestants take turns here as well, round by round; a figure is the median of its rounds.
"""

import base64
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from engine import DockerExec, docker, sha256, until_still
from lineup import Bench, Lineup
from measure import Contestant, right
from peer import Peer
from server import Ours, Server, content, fetched
from workloads import BY_KEY, Workload

SESSIONS = 8
BIG_FILE = 100_000_000
BIG_SETTINGS = {
    "SANDBOX_MEMORY_LIMIT": "1GB",
    "SANDBOX_DATA_LIMIT": "500MB",
    "SANDBOX_MAX_UPLOAD_BYTES": "150MB",
}

# Returns the seconds that all runs took together.
Parallel = Callable[[Workload, int], float]


def ours_parallel(server: Server, sessions: Sequence[str]) -> Parallel:
    """One client with one pipe: sends the next call of a session when the last one is answered."""

    def measure(workload: Workload, runs: int) -> float:
        left = dict.fromkeys(sessions, runs)
        waiting: dict[int, str] = {}

        def start(session: str) -> None:
            left[session] -= 1
            number, line = server.message("run_python", session_id=session, code=workload.code)
            waiting[number] = session
            server.write_line(line)

        begun = time.perf_counter()
        for session in sessions:
            start(session)
        while waiting:
            message = server.receive_any()
            session = waiting.pop(message["id"])
            answer = content(message["result"])
            right(answer["stdout"] == workload.stdout, workload.key, answer)
            if left[session]:
                start(session)
        return time.perf_counter() - begun

    return measure


def docker_parallel(contestants: Sequence[DockerExec]) -> Parallel:
    """A thread for each container, which mostly waits for its client."""

    def measure(workload: Workload, runs: int) -> float:
        def work(contestant: DockerExec) -> None:
            for _ in range(runs):
                workload.check(contestant.run(workload.code))

        with ThreadPoolExecutor(len(contestants)) as threads:
            begun = time.perf_counter()
            list(threads.map(work, contestants))
            return time.perf_counter() - begun

    return measure


def peer_parallel(peers: Sequence[Peer]) -> Parallel:
    names, worker = [peer.session for peer in peers], peers[0].worker

    def measure(workload: Workload, runs: int) -> float:
        answer = worker.ask("parallel", names=names, code=workload.code, runs=runs)
        right(answer["outputs"] == [workload.stdout] * (runs * len(names)), workload.key, "in parallel")
        return float(answer["seconds"])

    return measure


def alone(contestant: Contestant) -> Parallel:
    """One session, one call after another without a gap."""

    def measure(workload: Workload, runs: int) -> float:
        seconds = 0.0
        for _ in range(runs):
            ran = contestant.run(workload.code)
            workload.check(ran)
            seconds += ran.seconds
        return seconds

    return measure


@contextmanager
def all_at_once(bench: Bench, lineup: Lineup) -> Iterator[dict[str, Parallel]]:
    """Eight warm sessions of each contestant, for the time of the measurement."""
    server, names = lineup.server, [bench.session(str(number)) for number in range(SESSIONS)]
    for name in names:
        BY_KEY["print"].check(Ours(server, name).run(BY_KEY["print"].code))
    executors = [DockerExec(bench.run, lineup.limits.image, lineup.options) for _ in names]
    parallel = {"ours": ours_parallel(server, names), "docker": docker_parallel(executors)}
    if lineup.peer:
        peers = [Peer(lineup.peer.worker, bench.folder, name) for name in names]
        parallel["peer"] = peer_parallel(peers)
    until_still(server.containers())
    yield parallel
    # After an error they are removed at the end of the run, with everything else.
    for name in names:
        server.close(name)
        if lineup.peer:
            lineup.peer.worker.ask("close", name=name)
    docker("rm", "--force", *(executor.container for executor in executors))


def per_second(parallels: dict[str, Parallel], workload: Workload, runs: int, rounds: int, sessions: int) -> Any:
    """Runs per second of each contestant."""
    rates: dict[str, list[float]] = {key: [] for key in parallels}
    for _ in range(rounds):
        for key, measure in parallels.items():
            # Uses up anything that a contestant has prepared in a pause.
            measure(workload, 1)
            rates[key].append(runs * sessions / measure(workload, runs))
    found = {key: round(statistics.median(own), 1) for key, own in rates.items()}
    return found | {"runs": runs * sessions, "rounds": rounds}


def big_files(server: Server, session: str, rounds: int) -> dict[str, Any]:
    """MB/s of a 100 MB file: in through upload_file, out over HTTP."""
    ours = Ours(server, session)
    ours.run("print(2+2)")
    file = random.Random(3).randbytes(BIG_FILE)
    whole: list[float] = []
    wire: list[float] = []
    out: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        encoded = base64.b64encode(file).decode()
        arguments = {"session_id": session, "filename": "big.bin", "content_base64": encoded, "overwrite": True}
        number, line = server.message("upload_file", **arguments)
        ready = time.perf_counter()
        server.write_line(line)
        answer = content(server.receive(number))
        ended = time.perf_counter()
        del encoded, line, arguments
        right(answer["size_bytes"] == BIG_FILE, "upload", json.dumps(answer))
        whole.append(ended - begun)
        wire.append(ended - ready)
        url = ours.url("big.bin")
        begun = time.perf_counter()
        size = sum(len(piece) for piece in fetched(url))
        out.append(time.perf_counter() - begun)
        right(size == BIG_FILE, "download", size)
    right(ours.digest("big.bin") == sha256(file), "the large file is as it was sent")
    right(sha256(b"".join(fetched(ours.url("big.bin")))) == sha256(file), "and comes back so")
    seconds = {"upload_mb_s": wire, "upload_with_client_mb_s": whole, "download_mb_s": out}
    found = {name: round(BIG_FILE / 1e6 / statistics.median(own), 1) for name, own in seconds.items()}
    return found | {"n": rounds}
