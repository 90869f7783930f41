import os
import subprocess

os.environ["ADDED"] = "1"
print(sorted(subprocess.check_output(["env"], text=True).splitlines()))
print(subprocess.check_output(["env"], env={"ONLY": "this"}, text=True))
