import os

parent = os.getpid()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(writer, f"{os.getppid() == parent} {os.getpgrp() == parent}".encode())
    os._exit(3)
os.close(writer)
print(os.read(reader, 100), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
