# %%
import pandas as pd, numpy as np
df = pd.DataFrame({"city": ["Lyon", "Nice", "Lyon"], "spend": [1.5, 2.0, None], "n": [1, 2, 3]})
df
# %%
df.groupby("city")["spend"].sum()
# %%
df.describe()
# %%
df["Spend"]
# %%
df.info()
# %%
df.style.format("{:.1f}", subset=["n"])
# %%
pd.DataFrame(np.arange(400).reshape(4, 100))
# %%
pd.DataFrame({"n": range(200)})
# %%
pd.set_option("display.max_rows", 4)
pd.Series(range(50))
# %%
pd.Series(range(50), name="kept option")
# %%
pd.reset_option("display.max_rows")
display(df.head(1), df.dtypes)
# %%
df.groupby("city")
# %%
df.T, df.columns
# %%
df[df.n > 1]["spend"] = 0
# %%
df.loc[0, "spend"] = 99; df.spend.max()
# %%
pd.to_datetime(["2024-01-01", "2024-02-30"])
# %%
pd.read_csv("nothing.csv")
# %%
df.to_csv("out.csv", index=False)
pd.read_csv("out.csv").shape
# %%
df.query("n > 2 and city == 'Lyon'")
# %%
pd.merge(df, df, on="nothing")
# %%
pd.concat([df, df], ignore_index=True).pivot_table(index="city", values="n", aggfunc=["sum", "mean"])
# %%
df.n.astype("category").cat.categories, pd.Timestamp("2024-01-01"), pd.NA, pd.NaT
# %%
pd.DataFrame({"text": ["a very long text that goes on " * 5]})
# %%
print(df.to_string()); print(df)
# %%
df.plot
# %%
pd.DataFrame()
