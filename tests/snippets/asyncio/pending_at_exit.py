import asyncio


async def work():
    await asyncio.sleep(30)


loop = asyncio.new_event_loop()
task = loop.create_task(work(), name="pending")
loop.run_until_complete(asyncio.sleep(0))
print("main ends")
