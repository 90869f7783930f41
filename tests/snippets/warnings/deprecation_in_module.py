# given: helper.py
#| import warnings
#|
#|
#| def old():
#|     warnings.warn("nobody sees this", DeprecationWarning)
#|     warnings.warn("the caller sees this", DeprecationWarning, stacklevel=2)
#|     warnings.warn("everybody sees this")
import helper

helper.old()
helper.old()
