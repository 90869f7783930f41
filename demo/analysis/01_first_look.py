import pandas as pd

df = pd.read_csv("marketing.csv")
print(f"{len(df):,} rows, {df['date'].iloc[0]} to {df['date'].iloc[-1]}")
print(df.sample(10, random_state=1).to_string(index=False))

print("\nColumn, type and missing values:")
print(pd.DataFrame({"dtype": df.dtypes, "missing": df.isna().sum()}).to_string())

print("\nCost and revenue by channel:")
df["roas"] = df["revenue"] / df["cost"]
print(df.groupby("channel")[["cost", "revenue", "roas"]].sum())
