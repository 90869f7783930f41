import re

print(re.findall("\d+", "a1b22"))
if 1 is 1:
    print((1)(2))
