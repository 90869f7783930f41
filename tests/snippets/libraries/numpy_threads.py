import threading

import numpy as np

results = []
threads = [threading.Thread(target=lambda n=n: results.append(round(float(np.linalg.det(np.eye(50) * (n + 1)) ** (1 / 50)), 6))) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(results))
