import matplotlib.pyplot as plt

plt.plot([1, 2])
plt.show()
print(plt.get_fignums())
plt.style.use("ggplot")
print(plt.rcParams["axes.facecolor"], plt.rcParams["figure.figsize"])
