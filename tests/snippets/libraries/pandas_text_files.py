import io

import pandas as pd

frame = pd.read_csv(io.StringIO("a,b,c\n1,x,2026-01-01\n2,,2026-02-01\n"), parse_dates=["c"])
print(frame, frame.isna().sum())
frame.to_csv("out.csv", index=False)
frame.to_json("out.json", orient="records", date_format="iso")
frame.to_html("out.html")
print(frame.to_markdown() if False else frame.to_latex() if False else frame.to_dict())
print(pd.read_json("out.json").equals(frame), pd.read_csv("out.csv").shape)
