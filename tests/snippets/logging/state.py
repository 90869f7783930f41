# differs: stdout: the libraries are loaded before the program starts
import logging

print(logging.root, logging.root.handlers, logging.root.manager.disable, logging.raiseExceptions)
print(len(logging._handlerList), logging.getLogRecordFactory().__name__, logging.getLoggerClass().__name__)
print(logging.lastResort, logging.getLevelName(25), logging.logThreads, logging.logMultiprocessing)
record = logging.LogRecord("n", 20, "p", 1, "m", (), None)
print(record.process == __import__("os").getpid(), record.processName, record.threadName, record.taskName)
