# differs: stdout: the libraries are loaded before the program starts
import atexit

print(atexit._ncallbacks())
