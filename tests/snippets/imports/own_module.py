# given: helper.py
#| """Helps."""
#| from kit import part
#|
#| value = part.value * 2
# given: kit/__init__.py
#| from . import part
# given: kit/part.py
#| value = 21
# given: space/inner.py
#| name = __name__
import helper
import kit
from space import inner

print(helper.value, helper.__file__, kit.__path__, inner.name, helper.__doc__, helper.__cached__)
