import atexit

atexit.register(print, "never")
file = open("kept.txt", "w")
file.write("kept")
atexit._clear()
print("cleared")
