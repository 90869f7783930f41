import numpy as np

print(np.arange(12).reshape(3, 4), np.linspace(0, 1, 5), np.array([1e-10, 1e10]))
print(np.get_printoptions())
np.set_printoptions(precision=2, suppress=True)
print(np.array([np.pi, np.e]), np.eye(2), np.array(["a", None], dtype=object))
print(np.array([1, 2, 3]).dtype, np.int64(1), repr(np.float64(0.1)))
np.save("array.npy", np.arange(5))
mapped = np.memmap("mapped.dat", dtype="uint8", mode="w+", shape=10)
mapped[:] = 7
