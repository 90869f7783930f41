import os

file = open("twice.txt", "w")
file.write("a line\n")
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
print("parent" if pid else "child")
