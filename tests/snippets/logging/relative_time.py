# differs: stdout: the libraries are loaded before the program starts
import logging

record = logging.LogRecord("n", 20, "p", 1, "m", (), None)
print(0 <= record.relativeCreated < 1000)
