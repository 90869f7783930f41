"""The contestants: everything that a run of the benchmark starts, and the shutdown of all of it.

- Bench: the run itself: its label, folder, notes, and a stack of everything that must end
- Lineup: the contestants, each warm, under the limits that were read from ours
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import engine
import floor
import peer
from measure import Contestant, Wrong, right
from server import Ours, Server, accepts
from workloads import BY_KEY

POOL = {"SANDBOX_POOL_SIZE": "1"}
T = TypeVar("T")


class Bench:
    """One run of the benchmark, and everything that it has started."""

    def __init__(self, given: argparse.Namespace, stack: ExitStack) -> None:
        self.binary: Path = given.binary
        self.venv: Path | None = given.venv
        self.run: str = given.run
        self.folder: Path = given.folder
        self.writes: bool = given.write
        self.stack = stack
        # Called last; run.sh removes the containers as well, in case this process is killed.
        stack.callback(engine.remove_all, self.run)
        self.notes: list[str] = []
        self._begun = time.monotonic()

    def step(self, text: str) -> None:
        print(f"bench: {time.monotonic() - self._begun:4.0f} s  {text}", flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.step(f"note: {text}")

    def optional(self, name: str, start: Callable[[], T], wants_venv: bool = True) -> T | None:
        """A contestant, or None if it is not installed or does not work."""
        if wants_venv and self.venv is None:
            self.note(f"{name} was left out")
            return None
        try:
            return start()
        except (Wrong, OSError, ValueError) as error:
            self.note(f"{name} does not work here and is left out: {error}")
            return None

    def session(self, name: str) -> str:
        """A name that no other run uses."""
        return f"bench-{self.run}-{name}"

    def known(self, settings: dict[str, str]) -> dict[str, str]:
        """The given settings that this program knows."""
        found = {name: value for name, value in settings.items() if accepts(self.binary, self.folder, name, value)}
        for name in settings.keys() - found.keys():
            self.note(f"the server does not know {name}: what needs it is n/a")
        return found

    @contextmanager
    def server(self, name: str, settings: dict[str, str]) -> Iterator[Server]:
        server = Server(self.binary, self.folder, name, settings)
        failed = True
        try:
            yield server
            failed = False
        except Wrong:
            shown = (self.folder / f"{name}.stderr").read_text(errors="replace").splitlines()[-20:]
            print("\n".join([f"the end of the log of the server {name!r}:", *shown]), file=sys.stderr)
            raise
        finally:
            code = server.end()
            if not failed:
                right(code == 0, "the server ended with", code)
                server.until_containers(0)


@dataclass(frozen=True)
class Lineup:
    server: Server
    ours: Ours
    docker: engine.DockerExec
    peer: peer.Peer | None
    floors: tuple[floor.Floor, floor.Floor]
    limits: engine.Limits
    # The limits as `docker run` takes them.
    options: list[str]
    # The number of containers that the server starts ahead.
    pool: int

    @classmethod
    def start(cls, bench: Bench) -> "Lineup":
        wanted = bench.known(POOL)
        server = bench.stack.enter_context(bench.server("main", wanted))
        ours = Ours(server, bench.session("warm"))
        BY_KEY["print"].check(ours.run(BY_KEY["print"].code))
        pool = 1 if wanted and pool_fills(bench, server) else 0
        limits = engine.Limits.of(server.container_of(ours.session))
        options = limits.options(bench.folder)
        docker = engine.DockerExec(bench.run, limits.image, options)
        limits.check_same(docker.container)
        warm = floor.Warm(bench.run, bench.folder, limits.image, options)
        bench.stack.callback(warm.worker.end)
        floors = floor.Floor(warm, ahead=False), floor.Floor(warm, ahead=True)
        return cls(server, ours, docker, start_peer(bench, limits), floors, limits, options, pool)

    def sandboxes(self) -> list[Contestant]:
        found: list[Contestant] = [self.ours, self.docker]
        return [*found, self.peer] if self.peer else found

    def everybody(self) -> list[Contestant]:
        return [*self.sandboxes(), *self.floors]


def pool_fills(bench: Bench, server: Server) -> bool:
    try:
        # The warm session's container, and one of the pool.
        server.until_containers(2, patience_s=20)
    except Wrong:
        bench.note("the server knows SANDBOX_POOL_SIZE, but keeps no container ahead")
        return False
    return True


def start_peer(bench: Bench, limits: engine.Limits) -> peer.Peer | None:
    """Starts the package, and checks that it works."""

    def start() -> peer.Peer:
        found = peer.Peer(peer.start_worker(bench, limits), bench.folder)
        peer.prove(found)
        return found

    return bench.optional("PyPI llm-sandbox", start)
