import sqlite3

import pandas as pd

with sqlite3.connect(":memory:") as connection:
    pd.DataFrame({"city": ["Lyon", "Nice", "Lyon"], "n": [1, 2, 3]}).to_sql("visits", connection, index=False)
    print(pd.read_sql("select city, sum(n) as total from visits group by city order by city", connection))
