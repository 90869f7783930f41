import asyncio


async def main():
    process = await asyncio.create_subprocess_shell("cat; exit 3", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    print(await process.communicate(b"through\n"), process.returncode)


asyncio.run(main())
