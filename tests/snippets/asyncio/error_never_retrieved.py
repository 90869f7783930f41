import asyncio


async def fail():
    raise ValueError("lost")


async def main():
    task = asyncio.create_task(fail(), name="failing")
    await asyncio.sleep(0.01)
    del task


asyncio.run(main())
