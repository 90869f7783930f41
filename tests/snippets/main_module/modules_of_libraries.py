# differs: stdout: the libraries are loaded before the program starts
import sys

for name in "numpy", "pandas", "matplotlib", "seaborn", "scipy", "threading", "logging", "random":
    print(name, name in sys.modules)
