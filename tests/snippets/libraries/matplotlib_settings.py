import matplotlib
import matplotlib.pyplot as plt

for name in sorted(matplotlib.rcParams):
    print(name, matplotlib.rcParams[name])
print(matplotlib.matplotlib_fname(), matplotlib.get_configdir(), matplotlib.get_cachedir(), len(plt.style.available))
