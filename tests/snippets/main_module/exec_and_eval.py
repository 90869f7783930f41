value = 1
exec("value += 1\nnew = value")
print(value, new, eval("new + 1"), eval("__name__"), eval("__file__"))
print(globals() is locals(), globals() is eval("globals()"))


class Scope:
    print(sorted(name for name in locals()), __qualname__)
