# differs: stdout: the libraries are loaded before the program starts
import os

os.environ["MPLBACKEND"] = "svg"
import matplotlib
import matplotlib.pyplot as plt

print(matplotlib.get_backend())
matplotlib.use("pdf")
plt.plot([1, 2])
plt.savefig("chart", metadata={"CreationDate": None})
print(matplotlib.get_backend(), type(plt.gcf().canvas).__name__)
