import os
import sys

print("before")
os.environ["ADDED"] = "by the script"
os.execv(sys.executable, ["python3", "-c", "import os, sys; print(os.environ['ADDED']); sys.exit(16)"])
