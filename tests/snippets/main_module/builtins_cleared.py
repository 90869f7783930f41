# differs: stderr: what the libraries do at the end is done, and here meets what the program has broken or left on
import builtins

show = print
show("before")
builtins.__dict__.clear()
show("after")
