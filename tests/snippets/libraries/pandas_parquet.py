import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

frame = pd.DataFrame({"n": range(1000), "text": [f"row {n % 7}" for n in range(1000)]})
frame.to_parquet("rows.parquet")
print(pd.read_parquet("rows.parquet", columns=["text"])["text"].nunique(), pq.read_metadata("rows.parquet").num_rows)
table = pa.Table.from_pandas(frame)
print(table.group_by("text").aggregate([("n", "sum")]).sort_by("text").to_pydict(), pc.sum(table["n"]))
print(pa.cpu_count() >= 1, pa.default_memory_pool().backend_name)
