# differs: stdout: the link to the agent is one more open file
import os

for number in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}").split(":")[0])
    except FileNotFoundError:
        print(number, "the listing's own")
print(os.open("/dev/null", os.O_RDONLY))
