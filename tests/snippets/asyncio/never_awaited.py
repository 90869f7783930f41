import asyncio


async def work():
    pass


async def main():
    work()
    asyncio.sleep(1)


asyncio.run(main())
work()
