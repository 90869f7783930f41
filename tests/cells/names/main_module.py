# %%
# differs: result: nobody has written a text that describes the program
__name__, __doc__
# %%
__file__
# %%
import sys, __main__
sys.modules["__main__"] is __main__, vars(__main__) is globals(), globals() is locals()
# %%
sys.path[0], "" in sys.path
# %%
hidden = {"In", "Out", "get_ipython", "exit", "quit", "open"}
sorted(name for name in globals() if not name.startswith("_") and name not in hidden)
# %%
sorted(name for name in globals() if name.startswith("_"))
# %%
type(get_ipython()).__mro__[-3:], get_ipython() is not None
# %%
def where():
    import inspect
    return inspect.currentframe().f_lineno, inspect.stack()[0].function, where.__module__
where()
# %%
import inspect
print(inspect.getsource(where))
# %%
if __name__ == "__main__":
    print("the main program")
# %%
dir()[:1], "where" in dir(), "where" in vars()
# %%
__builtins__.__name__, type(__builtins__), __spec__, __package__
# %%
# differs: result: a notebook's program is what started the kernel, and its options are that one's
sys.argv
# %%
import argparse
argparse.ArgumentParser().parse_known_args([])
# %%
try:
    get_ipython
    print("in a notebook")
except NameError:
    print("in a script")
# %%
# differs: result: these end the cell and not the interpreter
open.__name__, exit, quit
