import os

import matplotlib.pyplot as plt

with open("large", "wb") as file:
    try:
        while file.write(bytes(1 << 20)):
            file.flush()
    except OSError as error:
        print(error)
plt.plot([1, 2])
try:
    plt.show()
except OSError as error:
    print(error.errno, plt.get_fignums(), sorted(os.listdir()))
os.remove("large")
plt.show()
print(plt.get_fignums(), sorted(os.listdir()))
