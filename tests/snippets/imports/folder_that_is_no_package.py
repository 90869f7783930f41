# given: numpy/data.csv
#| a,b
# given: json/data.csv
#| a,b
import json

import numpy

print(json.dumps(numpy.arange(3).tolist()))
