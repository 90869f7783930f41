import atexit


def broken(what):
    raise ValueError(what)


atexit.register(print, "first registered, last called")
atexit.register(broken, "one")
atexit.register(broken, what="two")
1 / 0
