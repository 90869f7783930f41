import logging
import logging.handlers


class Loud(logging.StreamHandler):
    def flush(self):
        print("flush")

    def close(self):
        print("close")
        super().close()


to_file = logging.FileHandler("run.log")
buffered = logging.handlers.MemoryHandler(100, target=to_file)
logger = logging.getLogger("own")
logger.addHandler(buffered)
logger.addHandler(Loud())
logger.warning("kept until the end")
