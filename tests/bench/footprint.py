"""Memory of a session's container: idle with all that makes it fast, and hibernated."""

import statistics
import time
from typing import Any

import engine
from server import Ours, Server
from workloads import BY_KEY

PATIENCE_S = 30
ASLEEP_S = 4


def warm(server: Server, session: str) -> engine.Memory:
    """Of a new session after its first small program, once it stands still."""
    BY_KEY["print"].check(Ours(server, session).run(BY_KEY["print"].code))
    container = server.container_of(session)
    engine.until_still([container])
    found = engine.memory(container)
    server.close(session)
    return found


def until_below(container: str, limit: float) -> engine.Memory | None:
    """Waits until it has let go of its memory; none if it does not.

    A session that has just begun, or just woken, has not loaded anything yet: only one that stays
    below the limit for a while is asleep.
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
    """With a server that lets sessions hibernate at once: their memory, and the call that wakes one."""
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
