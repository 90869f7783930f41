# given: helper.py
#| value = 1
import os

import helper

print(helper.value, sorted(os.listdir(".")))
