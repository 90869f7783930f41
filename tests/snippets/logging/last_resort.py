import logging

logging.getLogger("own").warning("to stderr, without a format")
logging.getLogger("own").info("hidden")
print(logging.root.handlers)
logging.warning("this configures")
print(logging.root.handlers)
