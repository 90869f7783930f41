# differs: stdout: the link to the agent is one more open file
import os

reached = []
for number in range(3, 256):
    try:
        os.write(number, b"\0" * 64)
        reached.append(number)
    except OSError:
        pass
print(reached)
raise SystemExit(15)
