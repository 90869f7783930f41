# start: cold: a module that Python itself has loaded is hidden, though not from before the start
# given: os.py
#| print("never imported")
import os

print(os.__file__)
