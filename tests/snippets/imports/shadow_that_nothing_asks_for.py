# start: cold: a module of the standard library is hidden from before the start
# given: json.py
#| raise RuntimeError("nobody imports this")
print("fine")
