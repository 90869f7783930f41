import os
import signal
import time

parent = os.getpid()
if os.fork() == 0:
    while "T (stopped)" not in open(f"/proc/{parent}/status").read():
        time.sleep(0.01)
    os.kill(parent, signal.SIGCONT)
    os._exit(0)
os.kill(parent, signal.SIGSTOP)
print("goes on")
