# start: cold: a library is hidden from before the start
# given: seaborn.py
#| name = "the user's own"
import seaborn

print(seaborn.name, seaborn.__file__)
