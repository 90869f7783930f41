# differs: stdout: the kernel remembers how the fork server was started
import os

with open("/proc/self/environ", "rb") as file:
    names = sorted(pair.split(b"=")[0] for pair in file.read().split(b"\0") if pair)
print(names == sorted(os.environb))
