"""Drives the soak: ten callers with a session each, at the same time, for a number of minutes, and samples of
the server every second. Needs only Python and the docker client."""

import collections
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from client import Server
from jobs import JOBS, Wrong, uploads_too_much

CALLERS = 10

# The most that the server may grow between the first third and the last: in kB, in descriptors. A leak of a kilobyte or
# a descriptor per call is far above it.
MOST_MEMORY_KB = 32_000
MOST_DESCRIPTORS = 20


def containers(server, *filters):
    """Ids of the containers of a server that has or had this process, in any state."""
    wanted = [part for filter in ("label=app=llm-sandbox", *filters) for part in ("--filter", filter)]
    template = '{{.ID}} {{.Label "llm-sandbox.owner"}}'
    command = ["docker", "ps", "--all", "--no-trunc", *wanted, "--format", template]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.split(" ", 1) for line in listed.stdout.splitlines())
    return {container for container, owner in lines if owner.split("/")[3:4] == [str(server.process.pid)]}


class Tally:
    """Counts of calls and jobs, and all mistakes."""

    def __init__(self):
        self.calls = collections.Counter()
        self.jobs = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()

    def count(self, kind, what):
        with self.lock:
            kind[what] += 1

    def fault(self, *what):
        with self.lock:
            self.wrong.append(what)


class Counted(Server):
    """Counts every call by its answer."""

    tally = None

    def call(self, tool, **arguments):
        answer = super().call(tool, **arguments)
        if self.tally:
            self.tally.count(self.tally.calls, answer[0] or "success")
        return answer


class Caller:
    def __init__(self, server, number, seed, tally):
        self.server, self.tally = server, tally
        self.name = f"soak-{os.getpid()}-{number}"
        self.random = random.Random(f"{seed} {number}")
        self.sessions = 0
        self.session = self.name

    def call(self, tool, **arguments):
        return self.server.call(tool, session_id=self.session, **arguments)

    def upload(self, name, content, **more):
        return self.server.upload(self.session, name, content, **more)

    def begin(self):
        """Starts a session with the file that it must keep; every second session has a new name."""
        self.sessions += 1
        self.session = f"{self.name}-{self.sessions // 2}"
        error, answer = self.with_a_place(lambda: self.upload("kept", b"kept"))
        if error:
            raise Wrong("no session", error, answer)

    @staticmethod
    def with_a_place(call):
        """Repeats a call until there is a place for its session: one is free a moment after a sandbox has died, not at
        once, and another caller's session may have the place of one that hibernates."""
        for _ in range(200):
            error, answer = call()
            if error != "max_sessions":
                break
            time.sleep(0.05)
        return error, answer

    def kill_container(self):
        for container in containers(self.server, f"label=session_id={self.session}"):
            subprocess.run(["docker", "kill", container], capture_output=True, check=True)

    def work(self, until):
        jobs, weights = list(JOBS), list(JOBS.values())
        while time.monotonic() < until:
            job = self.random.choices(jobs, weights)[0]
            try:
                job(self)
                # After any job the session must work at once, and have its file.
                code = "print(open('kept').read())"
                error, answer = self.with_a_place(lambda: self.call("run_python", code=code, timeout_s=5))
                if error or answer["stdout"] != "kept\n":
                    raise Wrong("after it", error, answer)
                self.tally.count(self.tally.jobs, job.__name__)
            except Exception as error:
                self.tally.fault(job.__name__, f"{type(error).__name__}: {error}"[:500])
                if self.server.process.poll() is not None:
                    return
                try:
                    self.server.call("close_session", session_id=self.session)
                    self.begin()
                except Exception as error:
                    self.tally.fault("a new session", f"{type(error).__name__}: {error}"[:500])
                    return


def grown(samples, figure):
    """The growth of the median from the first third to the last."""
    third = len(samples) // 3
    median = lambda part: sorted(sample[figure] for sample in part)[len(part) // 2]
    return median(samples[-third:]) - median(samples[:third]) if third else 0


def watch(server, threads, tally, begun):
    """Samples the server every second until all callers have ended; returns the samples."""
    samples = []
    while any(thread.is_alive() for thread in threads) and server.process.poll() is None:
        samples.append(server.figures())
        if len(samples) % 30 == 1:
            memory, descriptors = samples[-1]
            calls = sum(tally.calls.values())
            print(f"{time.monotonic() - begun:5.0f} s  {calls:6} calls  {memory:7} kB  {descriptors:4} descriptors", flush=True)
        time.sleep(1)
    if server.process.poll() is not None:
        tally.fault("the server ended", server.process.returncode)
    for thread in threads:
        thread.join()
    return samples


def errors(folder):
    """The errors in the server's log."""
    return [line for line in open(os.path.join(folder, "stderr.log"), errors="replace") if "ERROR" in line]


def report(title, tally, samples, checks, internal, begun, seed):
    """Prints the results; returns the exit code."""
    checks = checks | {
        f"memory did not grow ({grown(samples, 0):+} kB)": grown(samples, 0) < MOST_MEMORY_KB,
        f"descriptors did not grow ({grown(samples, 1):+})": grown(samples, 1) < MOST_DESCRIPTORS,
        "nothing went wrong inside": not internal,
    }
    print("\njobs:    " + ", ".join(f"{name} {count}" for name, count in tally.jobs.most_common()))
    print("answers: " + ", ".join(f"{code} {count}" for code, count in tally.calls.most_common()))
    for what in (*tally.wrong[:20], *internal[:20]):
        print("wrong:  ", what)
    memory, descriptors = ([sample[figure] for sample in samples] for figure in (0, 1))
    print(f"memory:  {memory[0]} kB at first, {max(memory)} at most, {memory[-1]} at last")
    print(f"descriptors: {descriptors[0]} at first, {max(descriptors)} at most, {descriptors[-1]} at last")
    for what, holds in checks.items():
        print("ok      " if holds else "FAILED  ", what)
    passed, failed = sum(tally.jobs.values()), len(tally.wrong) + sum(not holds for holds in checks.values())
    calls, seconds = sum(tally.calls.values()), time.monotonic() - begun
    print(f"{title}: {passed} passed, {failed} failed; {calls} calls in {seconds:.0f} s, seed {seed}")
    if "--write" in sys.argv:
        write(title, calls, seconds, len(tally.wrong), samples, checks["no container is left"])
    return 1 if failed else 0


def write(title, calls, seconds, wrong, samples, nothing_left):
    """Writes the results into the page of the documentation, also after mistakes."""
    root = next(folder for folder in Path(__file__).resolve().parents if (folder / "docs/measured.py").exists())
    sys.path.insert(0, str(root / "docs"))
    from measured import put

    memory = [f"{kb / 1000:.0f} MB" for kb in (samples[0][0], max(sample[0] for sample in samples), samples[-1][0])]
    head = [
        title, "calls", "minutes", "wrong", "memory at first", "at most", "at last", "growth, first to last third",
        "descriptors at first, at last", "containers left",
    ]  # fmt: skip
    row = [
        f"{datetime.now(timezone.utc):%Y-%m-%d}", f"{calls:,}", f"{seconds / 60:.0f}", str(wrong), *memory,
        f"{grown(samples, 0) / 1000:+.0f} MB", f"{samples[0][1]}, {samples[-1][1]}", "0" if nothing_left else "some",
    ]  # fmt: skip
    lines = (head, ["---"] + ["---:"] * (len(head) - 1), row)
    put("docs/reliability.md", title, "".join(f"| {' | '.join(line)} |\n" for line in lines))


def soak(title, server, folder, tally, callers, minutes, seed, about, before_end=lambda: {}, patience_s=0):
    """Lets all callers work at the same time, ends the server, and reports; returns the exit code."""
    begun = time.monotonic()
    until = begun + minutes * 60
    threads = [threading.Thread(target=caller.work, args=(until,)) for caller in callers]
    for thread in threads:
        thread.start()
    print(f"{title}: {about}, {minutes:g} min, seed {seed}", flush=True)
    samples = watch(server, threads, tally, begun)
    checks = {"every answer was the right one": not tally.wrong} | before_end()
    had, exit_code = containers(server), server.end()
    deadline = time.monotonic() + patience_s
    while (left := containers(server)) and time.monotonic() < deadline:
        time.sleep(1)
    checks |= {"the server ended with 0": exit_code == 0, "no container is left": not left}
    print(f"containers left: {len(left)} of {len(had)}")
    return report(title, tally, samples, checks, errors(folder), begun, seed)


def new_seed():
    return os.environ.get("SOAK_SEED", str(random.randrange(10**6)))


def main(binary, minutes):
    seed, tally = new_seed(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        server = Counted(binary, folder, {})
        callers = [Caller(server, number, seed, tally) for number in range(CALLERS)]
        for caller in callers:
            caller.begin()
        # One message of the largest size, so that the buffer for it does not look like growth.
        uploads_too_much(callers[0])
        server.tally = tally

        def before_end():
            # Pooled sandboxes and hibernating sessions without a place have containers, too: their number proves nothing.
            have_containers = all(containers(server, f"label=session_id={caller.session}") for caller in callers)
            return {
                "every line of output was JSON": not server.broken_lines,
                "a container for each session": have_containers,
            }

        return soak("soak", server, folder, tally, callers, minutes, seed, f"{CALLERS} sessions", before_end)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
