import sys

print([sys.monitoring.get_tool(number) for number in range(6)])
calls = []
sys.monitoring.use_tool_id(2, "own")
sys.monitoring.register_callback(2, sys.monitoring.events.PY_START, lambda code, offset: calls.append(code.co_name))
sys.monitoring.set_events(2, sys.monitoring.events.PY_START)


def work():
    pass


work()
sys.monitoring.set_events(2, 0)
print(calls)
