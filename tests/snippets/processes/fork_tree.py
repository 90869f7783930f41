import os

depth = 0
while depth < 3:
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print("depth", depth, "saw", status)
        os._exit(status + 1) if depth else None
        break
    depth += 1
else:
    os._exit(10)
