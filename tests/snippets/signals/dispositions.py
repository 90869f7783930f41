import signal

for number in sorted(signal.valid_signals()):
    print(int(number), signal.getsignal(number))
print(signal.set_wakeup_fd(-1))
