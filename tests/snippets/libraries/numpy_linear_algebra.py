import numpy as np

generator = np.random.default_rng(7)
matrix = generator.normal(size=(60, 60))
print(np.round(np.linalg.slogdet(matrix), 6))
print(np.round(np.linalg.svd(matrix, compute_uv=False)[:3], 6))
print(np.allclose(np.linalg.inv(matrix) @ matrix, np.eye(60)), np.round(np.trace(matrix @ matrix.T), 6))
print(np.linalg.lstsq(np.array([[1.0, 1], [1, 2], [1, 3]]), np.array([1.0, 2, 3]), rcond=None)[0].round(6))
np.linalg.inv(np.zeros((2, 2)))
