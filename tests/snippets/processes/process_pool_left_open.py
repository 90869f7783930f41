import multiprocessing


def square(n):
    return n * n


pool = multiprocessing.get_context("fork").Pool(2)
print(pool.map(square, range(4)))
