import builtins

print(sorted(dir(builtins)))
print(builtins.open.__module__, exit, quit, copyright is not None)
