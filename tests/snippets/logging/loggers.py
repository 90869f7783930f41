# differs: stdout: the libraries are loaded before the program starts
import logging

print(sorted(logging.root.manager.loggerDict))
