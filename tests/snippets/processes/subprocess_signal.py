import signal
import subprocess

process = subprocess.Popen(["sleep", "30"])
process.send_signal(signal.SIGTERM)
print(process.wait(), process)
