import typing


class Tree(typing.NamedTuple):
    left: "Tree | None"
    value: int = 0


class Movie(typing.TypedDict):
    name: str


def f(a: "Tree", b: "Movie" = None) -> "list[Tree]":
    pass


print(typing.get_type_hints(f), typing.get_type_hints(Tree))
type Pair[T] = tuple[T, T]


def first[T](pair: Pair[T]) -> T:
    return pair[0]


print(Pair.__value__, first((1, 2)), first.__type_params__)
