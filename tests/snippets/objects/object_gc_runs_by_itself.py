import gc

collected = []
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]) if phase == "stop" else None)


class Node:
    def __init__(self):
        self.itself = self


for _ in range(100_000):
    Node()
gc.callbacks.clear()
print(len(collected) > 10, gc.isenabled(), gc.collect() > 0)
