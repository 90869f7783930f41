# given: one.py
#| import two
#| value = two.value + 1
# given: two.py
#| import one
#| value = 1
# given: circle.py
#| from ring import thing
# given: ring.py
#| from circle import thing
import one

print(one.value)
import circle
