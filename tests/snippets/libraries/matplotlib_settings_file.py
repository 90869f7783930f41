# start: cold: matplotlib reads the file when it is imported
# given: matplotlibrc
#| lines.linewidth: 7.5
#| axes.grid: True
import matplotlib

print(matplotlib.rcParams["lines.linewidth"], matplotlib.rcParams["axes.grid"], matplotlib.matplotlib_fname())
