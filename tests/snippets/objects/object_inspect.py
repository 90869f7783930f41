import inspect
import linecache


def decorated(function):
    return function


@decorated
def example(a, /, b, *, c=1):
    """What it does."""
    return a, b, c  # a comment


class Example:
    def method(self):
        return lambda: 0


print(inspect.getsource(example), inspect.getsource(Example), inspect.signature(example))
print(inspect.getsourcefile(example), inspect.getfile(Example), inspect.getmodule(example).__name__)
print(inspect.getsourcelines(Example.method)[1], inspect.getcomments(example), inspect.getdoc(example))
print(repr(linecache.getline(__file__, 1)), len(linecache.getlines(__file__)) > 20)
