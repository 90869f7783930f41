import os
import sys

os.mkdir("modules")
with open("modules/inner.py", "w") as file:
    file.write("def double(x):\n    return 2 * x\n")
sys.path.insert(0, "modules")
import inner

print(inner.double(4), inner.__file__)
