import multiprocessing

import numpy as np


def work(n):
    return round(float(np.linalg.norm(np.full((100, 100), n) @ np.eye(100))), 3)


if __name__ == "__main__":
    for method in "fork", "spawn":
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, [1.0, 2.0, 3.0]))
