# differs: stdout: the libraries are loaded before the program starts
import warnings

import pandas

for filter in warnings.filters:
    print(filter)
