import atexit
import os

file = open("lost.txt", "w")
file.write("never written")
atexit.register(print, "never")
atexit.register(os._exit, 18)
print("main ends")
