import pandas as pd

frame = pd.DataFrame({"day": ["1/2/2026", "13/2/2026"], "n": [1, 2]})
print(pd.to_datetime(frame["day"], dayfirst=False, errors="coerce"))
print(pd.to_datetime(["2026-01-02", "yesterday"], errors="coerce"))
frame[frame["n"] > 1]["n"] = 5
for n in range(101):
    frame[f"column {n}"] = n
print(frame.shape)
