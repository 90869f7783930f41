import pandas as pd

frame = pd.DataFrame({"city": ["Lyon", "Nice"], "spend": [1, 2]})
print(frame["spend"].sum())
frame["spent"]
