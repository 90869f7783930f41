from multiprocessing.pool import ThreadPool

pool = ThreadPool(3)
print(pool.map(len, ["a", "bb", "ccc"]))
