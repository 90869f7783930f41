import signal
import time

print([signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)])
print(signal.alarm(0))
calls = []
signal.signal(signal.SIGALRM, lambda number, frame: calls.append((number, frame.f_code.co_name)))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
while len(calls) < 3:
    time.sleep(0.01)
signal.setitimer(signal.ITIMER_REAL, 0)
print(calls[:3])
