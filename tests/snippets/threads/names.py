import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

name = lambda: threading.current_thread().name
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(name).result())
print(threading.Timer(1, name).name, threading.Thread().name)


async def main():
    print(asyncio.current_task().get_name(), await asyncio.to_thread(name))


asyncio.run(main())
