import os

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")
plt.switch_backend("agg")
figure, axes = plt.subplots(1, 2)
other = plt.figure()
other.text(0.5, 0.5, "text alone")
figure.show()
print(plt.get_fignums(), os.listdir())
axes[0].plot([1, 2])
figure.show()
figure.show()
figure.savefig("again.png")
plt.sca(axes[1])
plt.plot([3])
plt.close(figure)
other.show(warn=False)
print(plt.get_fignums(), sorted(os.listdir()))
