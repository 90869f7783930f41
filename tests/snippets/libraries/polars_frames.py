import os

import pandas as pd
import polars as pl

frame = pl.DataFrame({"n": range(1000), "text": [f"row {n % 3}" for n in range(1000)]})
print(frame.group_by("text").agg(pl.col("n").sum()).sort("text"))
frame.write_csv("rows.csv")
frame.write_parquet("rows.parquet")
lazy = pl.scan_csv("rows.csv").filter(pl.col("n") > 990).select(pl.col("n").mean().alias("mean"))
print(lazy.collect(), pl.read_parquet("rows.parquet").shape)
print(pl.from_pandas(pd.DataFrame({"a": [1, 2]})).to_pandas().equals(pd.DataFrame({"a": [1, 2]})))
os.remove("rows.csv")
os.remove("rows.parquet")
