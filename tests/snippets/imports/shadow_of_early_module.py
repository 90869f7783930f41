# start: cold: a module that Python itself has loaded is hidden from before the start
# given: types.py
#| print("the user's own types")
# given: enum.py
#| print("the user's own enum")
print("main runs")
import enum

print(enum.__file__)
