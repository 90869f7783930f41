import os
import signal

for number in signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD:
    print(signal.signal(number, lambda number, frame: print("got", signal.Signals(number).name, frame.f_lineno)))
    os.kill(os.getpid(), number)
print(signal.raise_signal(signal.SIGUSR1))
