import pandas as pd
from tabulate import tabulate

frame = pd.DataFrame({"month": ["Jan", "Feb"], "sales": [3, 4.5]})
print(frame.to_markdown(index=False))
print(tabulate(frame, headers="keys", tablefmt="grid", showindex=False))
