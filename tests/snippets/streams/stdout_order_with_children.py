import os
import subprocess
import sys

print("one", end=" ")
subprocess.run(["echo", "two"])
print("three", end=" ")
os.system("echo four")
print("five", end=" ")
subprocess.run([sys.executable, "-c", "print('six')"])
pid = os.fork()
if pid == 0:
    print("seven")
    os._exit(0)
os.wait()
print("eight", end="")
