import os
import sys

saved = os.dup(1)
file = os.open("captured.txt", os.O_WRONLY | os.O_CREAT)
os.dup2(file, 1)
print("into the file")
os.system("echo from a child")
os.dup2(saved, 1)
print("back again", os.get_inheritable(1), os.get_inheritable(saved))
os.dup2(file, 1)
print("left in the file at the end")
