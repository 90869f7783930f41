import os

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

open("figure_2.png", "w").close()
for dpi in 50, 100:
    plt.figure(dpi=dpi)
    plt.plot([1, 2])
plt.figure()  # shows nothing
plt.figure(1)
plt.show()
print(plt.get_fignums(), sorted(os.listdir()), os.path.getsize("figure_2.png"))
print(Image.open("figure_1.png").size, Image.open("figure_3.png").size)
plt.bar(["a"], np.array([1]))  # begins a new one
plt.show(block=False)
plt.show()
print(plt.get_fignums(), sorted(os.listdir()))
