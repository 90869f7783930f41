import numpy as np

print(np.array([1.0, -1.0, 0.0]) / 0, np.geterr())
for value in -1, 0:
    print(np.log(value))
print(np.int8(100) + np.int8(100))
np.seterr(all="raise")
np.array([1.0]) / 0
