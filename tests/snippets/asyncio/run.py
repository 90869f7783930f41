import asyncio


async def work(n):
    await asyncio.sleep(0.01 * n)
    return n


async def main():
    print(await asyncio.gather(*(work(n) for n in range(3))))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(n), name=f"task {n}") for n in range(2)]
    print([task.result() for task in tasks], asyncio.current_task().get_name())
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    except TimeoutError:
        print("timed out")
    print(await asyncio.to_thread(sum, [1, 2]))


asyncio.run(main())
