import ast, re, pandas as pd, tools

key = ["channel", "campaign"]
ads = pd.read_csv("ads.csv").groupby(key)[["spend", "revenue"]].sum()
for column, table in (("budget", "budgets"), ("amount", "invoices")):
    query = f"SELECT channel, campaign, sum({column}) AS {column} FROM {table}"
    query += " WHERE month BETWEEN '2026-04' AND '2026-06' GROUP BY 1, 2"
    ads = ads.join(pd.DataFrame(ast.literal_eval(tools.finance.read_query(query))).set_index(key))
for line in tools.briefs.list_directory("2026-q2")["content"].splitlines():
    brief = tools.briefs.read_text_file("2026-q2/" + line.removeprefix("[FILE] "))["content"]
    field = lambda name: re.search(name + r": (.+)", brief)[1]
    ads.loc[(field("Channel"), field("Campaign")), "target"] = float(field("Target return"))
for channel in ads.index.unique("channel"):
    team = dict(it.split(": ", 1) for it in tools.people.open_nodes([f"{channel} team"])["entities"][0]["observations"])
    ads.loc[channel, ["lead", "fee"]] = team["lead"], float(team["fee_percent"]) / 100
ads["over_budget"], ads["over_invoiced"] = ads.spend / ads.budget - 1, ads.amount / ads.spend - 1
ads["return"] = ads.revenue / (ads.spend * (1 + ads.fee))
late = pd.DataFrame({"budget": ads.over_budget > 0.05, "invoices": ads.over_invoiced > 0.05})
late["return"] = ads["return"] < ads.target
ads["why"] = late.apply(lambda row: "+".join(late.columns[row]), axis=1)
found = ads[ads.why != ""].astype({"fee": float, "return": float})
print(found[["lead", "over_budget", "over_invoiced", "return", "target", "why"]].round(3).to_csv())
rows = ", ".join(f"('{channel}', '{name}', '{row.why}')" for (channel, name), row in found.iterrows())
print(tools.finance.write_query(f"INSERT INTO reviews VALUES {rows}"))
