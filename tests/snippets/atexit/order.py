import atexit


@atexit.register
def decorated():
    print("decorated")


atexit.register(print, "second", sep="")
atexit.register(print, "third", "with", "arguments", sep="-")
gone = atexit.register(lambda: print("never"))
atexit.unregister(gone)
print("main ends")
