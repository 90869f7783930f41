# given: extra.pth
#| import sys; sys.from_path_file = True
import sys

print(hasattr(sys, "from_path_file"))
