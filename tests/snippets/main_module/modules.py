# differs: stdout: the libraries are loaded before the program starts
import sys

print(sorted(name for name in sys.modules))
