import os
from pathlib import Path

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

frame = pd.DataFrame({"month": ["Jan", "Feb", "Mar"], "sales": [3.0, 1.5, 4.0], "region": ["N", "S", "N"]})
figure = px.bar(frame, x="month", y="sales", color="region", title="Sales")
figure.write_html("sales.html", div_id="sales")
page = Path("sales.html").read_text()
print("Sales" in page, "cdn.plot.ly/plotly" not in page.partition("<body>")[0], len(page) > 1_000_000)
print([trace.name for trace in figure.data], len(go.Figure(go.Heatmap(z=[[1, 2], [3, 4]])).to_dict()["data"]))
os.remove("sales.html")
