# differs: stdout: the libraries are loaded before the program starts
import logging
import sys

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import matplotlib.font_manager

logging.getLogger("own").debug("the script's own")
