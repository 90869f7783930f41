# %%
import asyncio
await asyncio.sleep(0, "waited")
# %%
async def numbers():
    for n in range(3):
        yield n
async for n in numbers():
    print(n)
# %%
[n async for n in numbers()]
# %%
class Manager:
    async def __aenter__(self): return "entered"
    async def __aexit__(self, *error): print("left")
async with Manager() as value:
    print(value)
# %%
async def work(n):
    await asyncio.sleep(0.001)
    return n * 2
await asyncio.gather(*(work(n) for n in range(3)))
# %%
task = asyncio.ensure_future(work(5)); await asyncio.sleep(0); task.done()
# %%
await task
# %%
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(work(n)) for n in range(2)]
[task.result() for task in tasks]
# %%
async def fail():
    raise KeyError("inside")
await fail()
# %%
await asyncio.wait_for(asyncio.sleep(5), 0.01)
# %%
await asyncio.gather(fail(), work(1), return_exceptions=True)
# %%
lock, queue = asyncio.Lock(), asyncio.Queue()
async with lock: await queue.put(1)
# %%
await queue.get()
# %%
# differs: result: no loop runs where nothing is awaited, so asyncio.run works here
# differs: stderr: no loop runs where nothing is awaited, so asyncio.run works here
# differs: status: no loop runs where nothing is awaited, so asyncio.run works here
asyncio.run(work(2))
# %%
x = await work(1) if False else 3
x
# %%
def ordinary():
    return await work(1)
# %%
coroutine = work(1)
coroutine
# %%
await coroutine
# %%
await asyncio.to_thread(lambda: "in a thread")
# %%
process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
await process.communicate()
