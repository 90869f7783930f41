import importlib
import importlib.util
import sys

print(importlib.import_module("__main__") is sys.modules[__name__])
print(importlib.util.find_spec("json").name)
try:
    print(importlib.util.find_spec("__main__"))
except ValueError as error:
    print(error)
