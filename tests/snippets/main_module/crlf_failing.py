def f():
    return [
        1 / 0,
    ]

f()
