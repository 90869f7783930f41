# %%
import matplotlib
matplotlib.get_backend()
# %%
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
type(axes).__name__
# %%
axes.plot([1, 2])
# %%
axes.set_title("a title")
# %%
axes.hist([1, 2, 2])
# %%
plt.show()
# %%
plt.plot([1, 2]); plt.savefig("mine.png"); plt.close("all")
plt.get_fignums()
# %%
plt.plot([3]); plt.show(); print("shown")
# %%
plt.close("all"); figure = plt.figure(); figure.add_subplot()
figure
# %%
# differs: result: a figure that is a value has become a file, and is closed
plt.get_fignums()
# %%
plt.plot([5])
1 / 0
# %%
# differs: files: figures left open become files
%matplotlib inline
plt.bar([1], [2]);
