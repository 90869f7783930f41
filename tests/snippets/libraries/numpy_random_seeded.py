import random

import numpy as np

random.seed(42)
np.random.seed(42)
print(random.random(), random.sample(range(100), 5), random.gauss(0, 1))
print(np.random.rand(3), np.random.normal(size=2), np.random.default_rng(42).random(3))
print(np.random.RandomState(1).randint(0, 100, 5), np.random.choice(5, 3))
