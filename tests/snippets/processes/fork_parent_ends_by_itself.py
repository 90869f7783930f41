import os

pid = os.fork()
if pid == 0:
    os.close(1)
    os.close(2)
    os.pause() if hasattr(os, "pause") else __import__("signal").pause()
print("the parent ends first")
raise SystemExit(8)
