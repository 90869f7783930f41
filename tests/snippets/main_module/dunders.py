print(__name__, __file__, __doc__, __package__, __spec__)
print(__annotations__ if "__annotations__" in globals() else "no annotations")
print(globals().get("__cached__", "absent"))
print(type(__builtins__).__name__, __builtins__.__name__)
