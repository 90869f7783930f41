import random

random.seed(1)
file = open("large.txt", "w")
for number in range(20_000):
    file.write(f"{number} {random.random()}\n")
