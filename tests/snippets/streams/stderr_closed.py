# differs: stderr: the libraries are loaded before the program starts
import sys

sys.stderr.close()
1 / 0
