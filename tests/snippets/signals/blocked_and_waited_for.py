import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending(), signal.sigwait({signal.SIGUSR1}))
os.kill(os.getpid(), signal.SIGUSR1)
print("ends with one pending")
