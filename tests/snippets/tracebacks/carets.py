class Node:
    def __init__(self, below=None):
        self.below = below


table = {"a": [{"b": Node(Node())}]}


def walk():
    return (
        table["a"][0]["b"]
        .below.below
        .below
    )


for attempt in (
    lambda: table["a"][0]["c"]["d"],
    lambda: 1 + (2 + "three") + 4,
    lambda: len(table, table),
):
    try:
        attempt()
    except Exception:
        import traceback

        traceback.print_exc()
walk()
