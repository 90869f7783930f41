# given: usercustomize.py
#| print("not with -s")
import site
import sys

print("usercustomize" in sys.modules, "sitecustomize" in sys.modules, site.ENABLE_USER_SITE)
