import builtins

for name in "open", "len", "getattr", "isinstance", "list", "id", "type", "Exception", "BaseException":
    delattr(builtins, name)
kept = [].__class__
print("still prints")
