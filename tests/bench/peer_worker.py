"""Runs inside the virtual environment of the PyPI package `llm-sandbox`, the only place where it is installed: opens
its sessions and times its calls, when the harness asks for them line by line.

Only the package's own call is timed.
"""

import json
import os
import sys
import threading
import time
from typing import Any

import docker
from llm_sandbox import InteractiveSandboxSession, SandboxSession
from llm_sandbox.pool import PoolConfig, create_pool_manager

Answer = dict[str, Any]


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

    def _session(self) -> Any:
        return SandboxSession(
            lang="python",
            image=self.image,
            keep_template=True,
            workdir="/mnt/data",
            # The package recommends this for images that have everything: otherwise it would make a venv without the
            # image's libraries, and ask a missing network for a newer pip.
            skip_environment_setup=True,
            runtime_configs=self.settings,
        )

    def open(self, name: str) -> Answer:
        session = self._session()
        session.open()
        self.sessions[name] = session
        # The home folder is still being copied.
        while session.execute_command("cat /proc/1/comm").stdout.strip() != "sleep":
            time.sleep(0.05)
        return {"container": session.container.id}

    def open_interactive(self, name: str) -> Answer:
        """Opens a session with a persistent interpreter. It polls for answers as often as it can be told to."""
        session = InteractiveSandboxSession(
            lang="python",
            image=self.image,
            keep_template=True,
            workdir="/mnt/data",
            skip_environment_setup=True,
            runtime_configs=self.settings,
            max_memory=None,
        )
        session.settings.poll_interval = 0.001
        session.open()
        self.sessions[name] = session
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
        session = self.sessions[name]
        begun = time.perf_counter()
        session.copy_to_runtime(source, target)
        return {"seconds": time.perf_counter() - begun}

    def download(self, name: str, source: str, target: str) -> Answer:
        session = self.sessions[name]
        begun = time.perf_counter()
        session.copy_from_runtime(source, target)
        return {"seconds": time.perf_counter() - begun}

    def execute(self, name: str, command: str) -> Answer:
        return {"stdout": self.sessions[name].execute_command(command).stdout}

    def life(self, code: str) -> Answer:
        """Opens a new session, runs a program, and closes the session."""
        begun = time.perf_counter()
        session = self._session()
        session.open()
        output = session.run(code)
        first = time.perf_counter() - begun
        session.close()
        return {"first": first, "whole": time.perf_counter() - begun, "stdout": output.stdout}

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
        begun = time.perf_counter()
        session = SandboxSession(lang="python", pool=self.pool, workdir="/mnt/data")
        session.open()
        output = session.run(code)
        first = time.perf_counter() - begun
        session.close()
        return {"first": first, "stdout": output.stdout}

    def parallel(self, names: list[str], code: str, runs: int) -> Answer:
        """Does this number of runs in each session, all sessions at the same time."""
        ready = threading.Barrier(len(names) + 1)
        outputs: list[list[str]] = [[] for _ in names]

        def work(number: int) -> None:
            session = self.sessions[names[number]]
            ready.wait()
            outputs[number].extend(session.run(code).stdout for _ in range(runs))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(names))]
        for thread in threads:
            thread.start()
        ready.wait()
        begun = time.perf_counter()
        for thread in threads:
            thread.join()
        return {"seconds": time.perf_counter() - begun, "outputs": [text for own in outputs for text in own]}

    def end(self) -> None:
        for session in self.sessions.values():
            session.close()
        if self.pool:
            self.pool.close()


def main() -> None:
    # Output of the package must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = Peer()
    try:
        for line in sys.stdin:
            question = json.loads(line)
            try:
                answer = getattr(peer, question.pop("do"))(**question)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            answers.write(json.dumps(answer) + "\n")
    finally:
        peer.end()


if __name__ == "__main__":
    main()
