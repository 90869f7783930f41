# start: cold: a module of the standard library is hidden from before the start
# given: random.py
#| def choice(values):
#|     return values[0]
import random

print(random.choice([1, 2]))
random.randint(1, 2)
