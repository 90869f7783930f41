def example(a: int = 1) -> str:
    """Says what it does.

    In two lines.
    """


help(example)
help("no such thing")
