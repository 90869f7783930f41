import warnings

import pandas

for filter in warnings.filters:
    print(filter)
