import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather

table = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})
pyarrow.csv.write_csv(table, "rows.csv")
print(pyarrow.csv.read_csv("rows.csv").column("n").to_pylist(), pc.sum(table["n"]), table["text"].null_count)
pyarrow.feather.write_feather(table, "rows.feather")
print(pyarrow.dataset.dataset("rows.feather", format="feather").to_table(filter=pc.field("n") > 1).num_rows)
os.remove("rows.csv")
os.remove("rows.feather")
