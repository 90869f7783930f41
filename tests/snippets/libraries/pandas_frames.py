import pandas as pd

frame = pd.DataFrame({"city": ["Lyon", "Nice", "Lyon", "Lille"], "spend": [1.5, 2.25, 3.125, 4.0], "day": pd.date_range("2026-01-30", periods=4)})
print(frame, frame.dtypes, frame.describe(), sep="\n")
print(frame.groupby("city")["spend"].agg(["sum", "mean", "count"]))
print(frame.merge(pd.DataFrame({"city": ["Lyon", "Lille"], "code": [69, 59]}), on="city", how="left"))
print(frame.pivot_table(index="city", columns=frame["day"].dt.month, values="spend", aggfunc="sum"))
print(frame.set_index("day").resample("2D")["spend"].sum(), frame["city"].value_counts())
print(frame.query("spend > 2").sort_values("spend", ascending=False).to_string(index=False))
frame.info()
