"""A folder of the operator's, read where it lies."""

import pandas as pd

before = pd.read_csv("/data/exports/marketing-before.csv")
print(f"{len(before):,} rows, {before.columns.size} columns")
try:
    before.to_csv("/data/exports/marketing-before.csv")
except OSError as error:
    print(f"/data/exports cannot be changed: {error.strerror}")
