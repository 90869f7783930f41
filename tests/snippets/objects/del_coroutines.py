# differs: stderr: the interpreter is not taken apart: what a program does at its very end still works
async def work():
    print("never")


async def numbers():
    try:
        yield 1
    finally:
        print("finally of the generator")


kept = work()
work()
generator = numbers()
print("main ends")
