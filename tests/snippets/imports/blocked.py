import sys

for name in "pandas", "json", "seaborn":
    sys.modules[name] = None
    try:
        __import__(name)
    except ImportError as error:
        print(error)
