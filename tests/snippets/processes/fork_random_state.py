import os
import random

random.seed(1)
pid = os.fork()
if pid == 0:
    print("seeded anew", random.random() != random.Random(1).random())
    os._exit(0)
os.waitpid(pid, 0)
print("as it was", random.random() == random.Random(1).random())
