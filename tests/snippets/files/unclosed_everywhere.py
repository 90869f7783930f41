import functools
import sys
import threading


def write(name):
    file = open(name, "w")
    file.write(name)
    return file


class Held:
    attribute = write("class.txt")


def default(file=write("default.txt")):
    pass


@functools.cache
def cached(name):
    return write(name)


cached("cache.txt")
closure = (lambda file: lambda: file)(write("closure.txt"))
local = threading.local()
local.file = write("local.txt")
sys.kept = write("sys.txt")
sys.modules["invented"] = type(sys)("invented")
sys.modules["invented"].file = write("invented.txt")
tuple_of_tuples = (((write("tuple.txt"),),),)
partial = functools.partial(print, file=write("partial.txt"))
bound = write("bound.txt").write
__dunder__ = write("dunder.txt")
_private = write("private.txt")
