import os

import matplotlib
import matplotlib.pyplot as plt

os.mkdir("below")
os.chdir("below")
matplotlib.use("svg")
plt.plot([1, 2])
plt.show()
print(plt.get_fignums(), os.listdir("/mnt/data"))
plt.close("all")
plt.switch_backend("agg")
plt.ion()
plt.plot([1, 2])
plt.pause(0.001)
plt.draw()
print(plt.get_fignums(), os.listdir("/mnt/data"))
plt.show()
print(plt.get_fignums(), sorted(os.listdir("/mnt/data")))
