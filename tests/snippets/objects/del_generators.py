def numbers(name):
    try:
        yield 1
    finally:
        print("finally of", name)


kept = numbers("kept")
next(kept)
next(numbers("dropped"))
unstarted = numbers("unstarted")
print("main ends")
