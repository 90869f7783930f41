import matplotlib

matplotlib.rcParams["svg.hashsalt"] = "fixed"
import matplotlib.pyplot as plt

plt.bar(["a", "b"], [1, 2])
plt.savefig("bars.svg", metadata={"Date": None})
plt.savefig("bars.pdf", metadata={"CreationDate": None})
print(plt.gca().get_xlabel() == "", plt.gca().get_xlim())
