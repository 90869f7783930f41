import os

file = open("lost.txt", "w")
file.write("not flushed before exec")
os.execvp("sh", ["sh", "-c", "ls -A; kill -TERM $$"])
