import logging
import sys

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s %(threadName)s %(processName)s %(message)s")
logging.info("shown %d", 1)
logging.getLogger("a.b").debug("hidden")
logging.getLogger("a.b").warning("warned")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("failed")
