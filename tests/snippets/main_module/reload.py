# given: helper.py
#| count = globals().get("count", 0) + 1
#| print("executed", count)
import importlib
import json
import sys

import helper

importlib.reload(helper)
print(helper.count, importlib.reload(json) is json)
try:
    importlib.reload(sys.modules["__main__"])
except Exception as error:
    print(type(error).__name__, error)
