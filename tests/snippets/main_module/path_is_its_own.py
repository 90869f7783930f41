import os
import sys

print("/tmp" in sys.path, "" in sys.path, os.getcwd() in sys.path)
try:
    import main
except ModuleNotFoundError as error:
    print(error)
sys.path.insert(0, "/tmp")
import main
