# differs: stdout: the libraries are loaded before the program starts
import concurrent
import importlib
import xml

for module, name in (importlib, "util"), (concurrent, "futures"), (xml, "etree"):
    print(module.__name__, name, hasattr(module, name))
