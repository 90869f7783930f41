import sys

import matplotlib.pyplot as plt

unseen = sys.modules["sandbox_figures"].unseen
print(unseen())
figure = plt.figure()
print(unseen())
plt.plot([1, 2])
plt.figure()
plt.plot([1, 2])
print(unseen())
figure.savefig("/tmp/x.png")
print(unseen())
plt.show()
print(unseen())
plt.plot([1, 2])
plt.close()
print(unseen())
plt.get_fignums = sys.modules["matplotlib._pylab_helpers"].Gcf = None
print(unseen())
