import os

# A program's first files have the lowest numbers: no library has taken them before it.
print(os.pipe(), os.open("first", os.O_CREAT | os.O_WRONLY))
