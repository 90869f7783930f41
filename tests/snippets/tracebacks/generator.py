def numbers():
    yield 1
    raise StopIteration


def relay():
    yield from numbers()


print(list(relay()))
