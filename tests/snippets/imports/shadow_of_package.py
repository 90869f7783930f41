# start: cold: a library is hidden from before the start
# given: numpy/__init__.py
#| name = "the user's own"
import numpy

print(numpy.name, numpy.__file__)
import pandas
