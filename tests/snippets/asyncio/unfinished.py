import asyncio


async def work():
    try:
        await asyncio.sleep(30)
    finally:
        print("cancelled at the end of run")


async def main():
    asyncio.create_task(work())
    await asyncio.sleep(0)
    raise ValueError("main fails")


asyncio.run(main())
