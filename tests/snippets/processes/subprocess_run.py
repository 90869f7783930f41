import subprocess
import sys

done = subprocess.run("echo out; echo err >&2; exit 3", shell=True, capture_output=True, text=True)
print(done)
print(subprocess.check_output(["pwd"], text=True), subprocess.getstatusoutput("exit 4"))
try:
    subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    print(error)
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print(error)
try:
    subprocess.run(["sleep", "30"], timeout=0.05)
except subprocess.TimeoutExpired as error:
    print(error)
