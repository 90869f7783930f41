# %%
import asyncio
done = []
async def later():
    await asyncio.sleep(0.001)
    done.append(1)
# %%
# differs: result: no loop runs where nothing is awaited
# differs: stderr: no loop runs where nothing is awaited
# differs: status: no loop runs where nothing is awaited
task = asyncio.create_task(later())
"started"
# %%
# differs: result: no loop runs where nothing is awaited
# differs: stderr: no loop runs where nothing is awaited
# differs: status: no loop runs where nothing is awaited
asyncio.get_running_loop().is_running()
# %%
pending = asyncio.create_task(later()); await asyncio.sleep(0)
# %%
# differs: result: nothing of a workspace runs between cells
pending.done()
# %%
await asyncio.sleep(0.01)
pending.done()
