# differs: stdout: at its deadline a program is asked where it stands, by a signal
import signal

print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
with open("/proc/self/status") as file:
    print("".join(line for line in file if line.startswith(("Sig", "Shd")) and not line.startswith("SigQ")))
