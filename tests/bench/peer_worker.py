"""Runs inside the virtual environment of the PyPI package `llm-sandbox`, the only place where it is installed: opens
its sessions and times its calls, when the harness asks for them line by line.

Only the package's own call is timed.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
from llm_sandbox import InteractiveSandboxSession, SandboxSession
from llm_sandbox.pool import PoolConfig, create_pool_manager

from answers import Answer, answer_questions


def timed(what: Callable[[], Any]) -> Answer:
    begun = time.perf_counter()
    what()
    return {"seconds": time.perf_counter() - begun}


def life_of(make: Callable[[], Any], code: str) -> Answer:
    begun = time.perf_counter()
    session = make()
    session.open()
    output = session.run(code)
    first = time.perf_counter() - begun
    session.close()
    return {"first": first, "whole": time.perf_counter() - begun, "stdout": output.stdout}


class Peer:
    def __init__(self) -> None:
        self.image = ""
        self.settings: dict[str, Any] = {}
        self.sessions: dict[str, Any] = {}
        self.pool: Any = None

    def configure(self, image: str, settings: dict[str, Any], ulimits: list[dict[str, Any]]) -> Answer:
        self.image = image
        self.settings = settings | {
            "ulimits": [docker.types.Ulimit(**limit) for limit in ulimits],
            "log_config": docker.types.LogConfig(type="none"),
        }
        return {}

    def _session(self, kind: Any = SandboxSession, **more: Any) -> Any:
        return kind(
            lang="python",
            image=self.image,
            keep_template=True,
            workdir="/mnt/data",
            # The package recommends this for images that have everything: otherwise it would make a venv without the
            # image's libraries, and ask a missing network for a newer pip.
            skip_environment_setup=True,
            runtime_configs=self.settings,
            **more,
        )

    def open(self, name: str) -> Answer:
        session = self.sessions[name] = self._session()
        session.open()
        # The home folder is still being copied.
        while session.execute_command("cat /proc/1/comm").stdout.strip() != "sleep":
            time.sleep(0.05)
        return {"container": session.container.id}

    def open_interactive(self, name: str) -> Answer:
        """Opens a session with a persistent interpreter, which polls for answers at its shortest interval."""
        session = self.sessions[name] = self._session(InteractiveSandboxSession, max_memory=None)
        session.settings.poll_interval = 0.001
        session.open()
        return {"container": session.container.id}

    def close(self, name: str) -> Answer:
        self.sessions.pop(name).close()
        return {}

    def run(self, name: str, code: str) -> Answer:
        session = self.sessions[name]
        begun = time.perf_counter()
        output = session.run(code)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "exit_code": output.exit_code, "stdout": output.stdout, "stderr": output.stderr}

    def upload(self, name: str, source: str, target: str) -> Answer:
        return timed(lambda: self.sessions[name].copy_to_runtime(source, target))

    def download(self, name: str, source: str, target: str) -> Answer:
        return timed(lambda: self.sessions[name].copy_from_runtime(source, target))

    def execute(self, name: str, command: str) -> Answer:
        return {"stdout": self.sessions[name].execute_command(command).stdout}

    def life(self, code: str) -> Answer:
        """Opens a new session, runs a program, and closes the session."""
        return life_of(self._session, code)

    def fill_pool(self, prepare: str) -> Answer:
        """Makes a pool of one container. A session from the pool insists on a venv in its folder."""
        settings = self.settings | {"entrypoint": ["sh", "-c", prepare]}
        self.pool = create_pool_manager(
            backend="docker",
            config=PoolConfig(min_pool_size=1, max_pool_size=1, enable_prewarming=True),
            lang="python",
            image=self.image,
            workdir="/mnt/data",
            skip_environment_setup=True,
            runtime_configs=settings,
        )
        return {}

    def pooled(self, code: str) -> Answer:
        return life_of(lambda: SandboxSession(lang="python", pool=self.pool, workdir="/mnt/data"), code)

    def parallel(self, names: list[str], code: str, runs: int) -> Answer:
        """Does this number of runs in each session, all sessions at the same time."""
        def work(name: str) -> list[str]:
            return [self.sessions[name].run(code).stdout for _ in range(runs)]

        with ThreadPoolExecutor(len(names)) as threads:
            begun = time.perf_counter()
            outputs = list(threads.map(work, names))
            return {"seconds": time.perf_counter() - begun, "outputs": [text for own in outputs for text in own]}

    def end(self) -> None:
        for session in self.sessions.values():
            session.close()
        if self.pool:
            self.pool.close()


if __name__ == "__main__":
    peer = Peer()
    try:
        answer_questions(lambda do: getattr(peer, do))
    finally:
        peer.end()
