import time
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)
results = [pool.submit(lambda n: (time.sleep(0.02), n * n)[1], n) for n in range(5)]
for result in results:
    result.add_done_callback(lambda done: numbers.append(done.result()))
numbers = []
import atexit

atexit.register(lambda: print(sorted(numbers)))
print("main ends")
