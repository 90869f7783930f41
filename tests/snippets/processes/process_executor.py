from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def cube(n):
    if n == 3:
        raise ValueError("three")
    return n**3


if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        print(list(pool.map(cube, range(3))))
        error = pool.submit(cube, 3).exception()
        print(repr(error), type(error.__cause__).__name__)
