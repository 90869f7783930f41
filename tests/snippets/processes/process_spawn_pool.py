import multiprocessing
from dataclasses import dataclass


@dataclass
class Point:
    x: int


def double(point):
    return Point(point.x * 2)


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [Point(1), Point(2)]))
