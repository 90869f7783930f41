# differs: stderr: what the libraries do at the end is done, and here meets what the program has broken or left on
import builtins

for name in "open", "len", "getattr", "isinstance", "list", "id", "type", "Exception", "BaseException":
    delattr(builtins, name)
kept = [].__class__
print("still prints")
