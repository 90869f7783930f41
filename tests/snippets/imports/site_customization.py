# start: cold: the file is executed before the script
# given: sitecustomize.py
#| import builtins
#|
#| builtins.customized = "by sitecustomize"
# given: usercustomize.py
#| print("not with -s")
import sys

print(customized, "usercustomize" in sys.modules)
