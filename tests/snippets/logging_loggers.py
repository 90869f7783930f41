import logging

print(sorted(logging.root.manager.loggerDict))
