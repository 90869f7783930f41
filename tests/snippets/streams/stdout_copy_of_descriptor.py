import os

copy = os.fdopen(os.dup(1), "w")
copy.write("unflushed at the end\n")
print("printed")
