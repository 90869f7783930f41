import contextlib


@contextlib.contextmanager
def context(name):
    print("enter", name)
    try:
        yield
    finally:
        print("exit", name)


stack = contextlib.ExitStack()
stack.enter_context(context("one"))
stack.callback(print, "callback")
alone = context("two")
alone.__enter__()
print("main ends")
