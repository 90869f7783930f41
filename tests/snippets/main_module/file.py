import os
import stat

status = os.stat(__file__)
print(__file__, os.path.isabs(__file__), stat.filemode(status.st_mode), status.st_uid)
source = open(__file__).read()
print(source.startswith("import os\nimport stat\n"), source.endswith("# the end\n"), len(source))
open("copy.py", "w").write(source)
# the end
