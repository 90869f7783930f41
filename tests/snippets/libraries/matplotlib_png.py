import matplotlib
import matplotlib.pyplot as plt

print(plt.get_fignums(), matplotlib.get_backend(), plt.isinteractive())
figure, axes = plt.subplots(figsize=(4, 3))
axes.plot([1, 2, 3], [1, 4, 9], label="line")
axes.set_title("Größe 东京")
axes.legend()
figure.savefig("line.png")
print(plt.get_fignums(), figure.number, plt.gcf() is figure)
