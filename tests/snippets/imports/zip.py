import sys
import zipfile

with zipfile.ZipFile("modules.zip", "w") as archive:
    archive.writestr("zipped.py", "value = 7\n")
sys.path.append("modules.zip")
import zipped

print(zipped.value, zipped.__file__)
import os

os.remove("modules.zip")
