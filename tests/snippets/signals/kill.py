import os
import signal

file = open("lost.txt", "w")
file.write("never written")
print("before")
os.kill(os.getpid(), signal.SIGKILL)
