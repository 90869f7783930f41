# given: kit/__init__.py
#| name = "kit"
# given: kit/__main__.py
#| from . import name
#| print("run as", __name__, name)
import subprocess
import sys

subprocess.run([sys.executable, "-m", "kit"])
from . import kit
