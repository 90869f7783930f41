"""Clean marketing.csv, say what was wrong with it, and work out the KPIs by channel.

The column with the cost is called `spend`. The first look also shows that amounts come as text (some are "$1,234.50"),
channels in several spellings and dates in two formats, so everything is read as text and made into what it should be.
"""

import json
from pathlib import Path

import pandas as pd

NUMBERS = ["spend", "impressions", "clicks", "conversions", "revenue"]
NEEDED = ["spend", "conversions", "revenue"]

raw = pd.read_csv("marketing.csv", dtype="str")
df = raw.drop_duplicates().copy()
issues = []


def note(issue, rows, treatment):
    issues.append({"issue": issue, "rows": int(rows), "treatment": treatment})


note("Duplicate rows", len(raw) - len(df), "removed")

# ISO first; what is left over has the day in front, as 14/03/2026.
iso = pd.to_datetime(df["date"], format="%Y-%m-%d", errors="coerce")
day_first = pd.to_datetime(df["date"], format="%d/%m/%Y", errors="coerce")
note("Dates as DD/MM/YYYY", (iso.isna() & day_first.notna()).sum(), "read with the day first")
df["date"] = iso.fillna(day_first)

tidy = df["channel"].str.strip().str.capitalize()
note("Channel spelt differently", (tidy != df["channel"]).sum(), "trimmed, one spelling")
df["channel"] = tidy

text = df[["spend", "revenue"]].apply(lambda column: column.str.contains("$", regex=False, na=False))
note("Amounts typed as $1,234.50", text.to_numpy().sum(), "currency signs and commas taken out")
for column in NUMBERS:
    df[column] = pd.to_numeric(df[column].str.replace(r"[$,]", "", regex=True), errors="coerce")

negative = df["spend"] < 0
note("Negative spend", negative.sum(), "sign taken as a typing error")
df.loc[negative, "spend"] = df["spend"].abs()

for column in NEEDED:
    note(f"No {column}", df[column].isna().sum(), "left out of every figure")
note("No region", df["region"].isna().sum(), "left out of the regional figures only")

# A ratio is fair only if both of its sides come from the same rows.
clean = df.dropna(subset=["date", *NEEDED])
note("Rows in the file", len(raw), f"{len(clean):,} used ({len(clean) / len(raw):.1%})")

bad_dates = df["date"].isna().sum()
assert bad_dates == 0, f"{bad_dates} dates in an unknown format"
assert clean["channel"].nunique() == 6, sorted(clean["channel"].unique())

clean.to_pickle("clean.pkl")
Path("quality.json").write_text(json.dumps(issues, indent=2), encoding="utf-8")

first, last = clean["date"].min(), clean["date"].max()
print(f"DATA QUALITY: {len(raw):,} rows read, {len(clean):,} used, {first:%d %b %Y} to {last:%d %b %Y}")
for item in issues[:-1]:
    print(f"  {item['issue']:<28}{item['rows']:>6,}   {item['treatment']}")

kpi = clean.groupby("channel")[NUMBERS].sum().sort_values("revenue", ascending=False)
kpi.loc["All"] = kpi.sum()
table = pd.DataFrame(
    {
        "Spend": kpi["spend"].map("${:,.0f}".format),
        "Revenue": kpi["revenue"].map("${:,.0f}".format),
        "ROAS": (kpi["revenue"] / kpi["spend"]).map("{:.2f}".format),
        "CPA": (kpi["spend"] / kpi["conversions"]).map("${:,.2f}".format),
        "CTR": (kpi["clicks"] / kpi["impressions"]).map("{:.2%}".format),
        "CVR": (kpi["conversions"] / kpi["clicks"]).map("{:.2%}".format),
    }
)
print("\nKPI BY CHANNEL")
print(table.rename_axis(None).to_string())
