import asyncio
import sys

try:
    asyncio.get_running_loop()
except RuntimeError as error:
    print(error)
print(asyncio._get_running_loop(), sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth())
loop = asyncio.get_event_loop()
print(type(loop).__name__, loop.is_running())
