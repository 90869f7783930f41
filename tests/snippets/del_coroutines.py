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
