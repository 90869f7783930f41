import os

events = []
os.register_at_fork(
    before=lambda: events.append("before"),
    after_in_parent=lambda: events.append("parent"),
    after_in_child=lambda: events.append("child"),
)
pid = os.fork()
if pid == 0:
    print(events)
    os._exit(0)
os.waitpid(pid, 0)
print(events)
