from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

pool = ProcessPoolExecutor(1, mp_context=get_context("fork"))
print(pool.submit(pow, 2, 10).result())
