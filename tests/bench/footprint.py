"""Memory of a session's container: idle with everything loaded that makes it fast, and hibernated."""

import statistics
import time
from typing import Any

import engine
from server import Ours, Server
from workloads import BY_KEY

PATIENCE_S = 30
ASLEEP_S = 4


def warm(server: Server, session: str) -> engine.Memory:
    """The stable memory of a new session after its first small program."""
    BY_KEY["print"].check(Ours(server, session).run(BY_KEY["print"].code))
    found = engine.still_memory(server.container_of(session))
    server.close(session)
    return found


def until_below(container: str, limit: float) -> engine.Memory | None:
    """Waits until the container has released its memory; returns None if it does not.

    A new session, or one that has just woken, has not loaded anything yet: only a session that stays
    below the limit for some seconds is hibernated.
    """
    now = time.monotonic()
    deadline, below_since = now + PATIENCE_S, now
    while now - below_since < ASLEEP_S:
        if now > deadline:
            return None
        time.sleep(0.1)
        now = time.monotonic()
        if engine.memory(container).used > limit:
            below_since = now
    return engine.memory(container)


def hibernated(server: Server, session: str, idle: engine.Memory, wakes: int) -> dict[str, Any] | None:
    """Measures sessions that hibernate at once: their memory, and the call that wakes one."""
    ours, workload = Ours(server, session), BY_KEY["print"]
    workload.check(ours.run(workload.code))
    container = server.container_of(session)
    seconds, asleep = [], None
    for _ in range(wakes):
        asleep = until_below(container, idle.used / 2)
        if asleep is None:
            return None
        ran = ours.run(workload.code)
        workload.check(ran)
        seconds.append(ran.seconds * 1e3)
    assert asleep
    return asleep.report() | {"wake_ms": round(statistics.median(seconds), 2), "wakes": wakes}
