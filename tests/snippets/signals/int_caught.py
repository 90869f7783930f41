import _thread
import os
import signal
import time

for interrupt in (lambda: os.kill(os.getpid(), signal.SIGINT), _thread.interrupt_main):
    try:
        interrupt()
        time.sleep(30)
    except KeyboardInterrupt as error:
        print("caught", repr(error))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
