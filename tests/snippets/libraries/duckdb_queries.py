import os

import duckdb
import pandas as pd

frame = pd.DataFrame({"region": ["N", "S", "N"], "sales": [1.5, 2.0, 3.0]})
print(duckdb.sql("SELECT region, sum(sales) AS total FROM frame GROUP BY region ORDER BY region").df())
duckdb.sql("SELECT * FROM frame").write_csv("sales.csv")
duckdb.sql("COPY frame TO 'sales.parquet'")
print(duckdb.sql("SELECT count(*), max(sales) FROM 'sales.csv'").fetchall())
print(duckdb.sql("FROM 'sales.parquet' ORDER BY sales DESC LIMIT 1"))
with duckdb.connect("kept.duckdb") as kept:
    kept.execute("CREATE TABLE numbers AS SELECT range AS n FROM range(100000)")
    print(kept.execute("SELECT sum(n) FROM numbers").fetchone())
for name in "sales.csv", "sales.parquet", "kept.duckdb":
    os.remove(name)
