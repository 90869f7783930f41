print(sorted(globals()))
print(sorted(vars()) == sorted(globals()), dir() == sorted(globals()))
