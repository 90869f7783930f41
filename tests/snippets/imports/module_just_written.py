import importlib

with open("written.py", "w") as file:
    file.write("value = 1\n")
importlib.invalidate_caches()
import written

print(written.value, written.__file__)
with open("written.py", "w") as file:
    file.write("value = 'longer than before'\n")
print(importlib.reload(written).value)
