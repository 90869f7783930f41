import pickle
from collections import namedtuple
from enum import Enum


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


class Color(Enum):
    RED = 1


Pair = namedtuple("Pair", "a b")


def function():
    pass


values = [Point(1), Color.RED, Pair(1, 2), function]
data = pickle.dumps(values, protocol=4)
print(pickle.loads(data) == values, data)
with open("values.pickle", "wb") as file:
    pickle.dump(values, file)
pickle.dumps(lambda: 0)
