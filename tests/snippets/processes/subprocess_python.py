import subprocess
import sys

code = "import sys, os; print(__name__, sys.argv, sys.flags.safe_path, sys.path, os.environ.get('PYTHONPATH'))"
subprocess.run([sys.executable, "-c", code, "argument"])
subprocess.run([sys.executable, "-m", "json.tool"], input=b"[1]")
subprocess.run(["python3", __file__.replace("main.py", "absent.py")])
