# differs: stderr: below the program there is one frame of the fork server
import logging

logging.basicConfig(format="%(message)s")
logging.warning("%d and %d", 1)
logging.captureWarnings(True)
import warnings

warnings.warn("through logging")
