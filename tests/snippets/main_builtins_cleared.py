import builtins

show = print
show("before")
builtins.__dict__.clear()
show("after")
