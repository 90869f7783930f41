# differs: stderr: what the libraries do at the end is done, and here meets what the program has broken or left on
import builtins

show = print
builtins.__dict__.clear()
show("after")
missing
