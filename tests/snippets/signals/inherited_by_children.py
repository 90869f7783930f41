import subprocess
import sys

code = """
for line in open('/proc/self/status'):
    if line.startswith(('SigBlk', 'SigIgn', 'SigCgt')): print(line, end='')
"""
subprocess.run([sys.executable, "-c", code])
subprocess.run([sys.executable, "-c", code], restore_signals=False)
subprocess.run(["grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"])
