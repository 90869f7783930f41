class Outer:
    class Inner:
        pass

    def method(self):
        pass


def function():
    def inner():
        pass

    return inner


print(Outer, Outer.Inner, Outer.Inner.__qualname__, Outer.__module__, Outer().method.__qualname__)
print(function().__qualname__, function.__module__, Outer.__dict__.get("__firstlineno__"))
print(repr(Outer()).split(" at ")[0], repr(function).split(" at ")[0])
