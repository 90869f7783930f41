import builtins

show = print
builtins.__dict__.clear()
show("after")
missing
