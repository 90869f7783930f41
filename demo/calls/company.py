"""A web shop and its campaigns, in four places: an export of the advertising (a CSV), a folder of briefs, a database of
budgets and invoices, and a knowledge graph of teams.

The figures of the advertising are those of make_csv.py, without the defects of its export. Budgets, invoices and
targets are made from them, so that some campaigns miss what was agreed. `findings` states which, by a computation of
its own.
"""

import csv
import io
import json
import sqlite3
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import make_csv  # noqa: E402

QUARTER = "2026-q2"
MONTHS = ("2026-04", "2026-05", "2026-06")

# The team of each channel: who leads it, its agency, and the agency's fee in percent of the spend.
TEAMS = {
    "Search": ("Ann Petersen", "Northlight", 8),
    "Social": ("Mateo Ruiz", "Bright & Bold", 12),
    "Display": ("Yuki Tanaka", "Pixelworks", 15),
    "Email": ("Fatima Haddad", "none", 0),
    "Affiliate": ("Jonas Weber", "PartnerHub", 20),
    "Video": ("Chloé Martin", "Framehouse", 14),
}

# Campaigns that differ from what was agreed: the spend by the budget, what was invoiced by the spend, and the target by
# the return. All others are as agreed.
OVER_BUDGET = {("Social", "Lookalike Prospecting"): 1.13}
OVER_INVOICED = {("Affiliate", "Coupon Sites"): 1.19}
UNDER_TARGET = {("Display", "Awareness Reach"): 1.4, ("Video", "Product Stories"): 1.25}

AUDIENCES = {
    "Search": "people who look for the products or for the shop by name, in the language of their region",
    "Social": "people between 25 and 44 who are like our customers, and visitors who left something in their cart",
    "Display": "readers of news and lifestyle pages who have seen at least one of our products in the past 30 days",
    "Email": "customers who have agreed to receive mails, in segments by the date of their last order",
    "Affiliate": "readers of blogs on interior design, and people who look for a coupon before they order",
    "Video": "viewers of films on living and design, who have not bought from us before",
}

BRIEF = """# {name}

Channel: {channel}
Campaign: {name}
Quarter: Q2 2026
Status: approved
Target return: {target}

## Goal

This campaign brings orders at a return that pays for the media and for the agency. The return is the revenue that is
attributed to the campaign within seven days, divided by the cost of the media including the fee of the agency. If it
is below the target for a whole quarter, the team and finance review the campaign together.

## Audience

We address {audience}. Regions: {regions}. The budget is divided between the regions by the size of their
markets, and moved between them every second week, by at most a fifth.

## Message and material

The lead message of the quarter is "Made to stay": furniture and lamps that last, with spare parts for ten years.
Material in nine formats is in the library, in all languages of the regions. Prices are shown only in formats that are
refreshed daily. Nothing may name a competitor, or promise a date of delivery.

## Measurement

Clicks and orders are counted by our own analytics, not by the figures of the platform. The export of the advertising
has a row for each day, campaign and region. Invoices must not be higher than the spend in that export by more than
5 %; the budget is in the finance database, and is exceeded by at most 5 % without a new approval.

## Notes

- Frequency is limited to {frequency} contacts for each person and week.
- Placements beside news on accidents and politics are excluded.
- The last review was in March; the next is planned for the first week of July.
"""


@dataclass
class Campaign:
    channel: str
    name: str
    spend: float
    revenue: float
    budget: int
    invoiced: float
    target: float

    @property
    def cost(self) -> float:
        return self.spend * (1 + TEAMS[self.channel][2] / 100)

    @property
    def reasons(self) -> list[str]:
        found = ["budget"] * (self.spend > 1.05 * self.budget)
        found += ["invoices"] * (self.invoiced > 1.05 * self.spend)
        return found + ["return"] * (self.revenue / self.cost < self.target)


@dataclass
class Company:
    export: str
    rows: int
    campaigns: list[Campaign]

    def findings(self) -> list[dict[str, Any]]:
        """The campaigns that need a review, and why."""
        return [
            {
                "channel": it.channel,
                "campaign": it.name,
                "lead": TEAMS[it.channel][0],
                "over_budget": it.spend / it.budget - 1,
                "over_invoiced": it.invoiced / it.spend - 1,
                "return": it.revenue / it.cost,
                "target": it.target,
                "why": "+".join(it.reasons),
            }
            for it in sorted(self.campaigns, key=lambda it: (it.channel, it.name))
            if it.reasons
        ]


def make() -> Company:
    """Returns the company, always the same."""
    rows = [row for row in make_csv.true_rows(make_csv.Dice(make_csv.SEED)) if str(row["date"])[:7] in MONTHS]
    text = io.StringIO()
    table = csv.DictWriter(text, make_csv.COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        of = sums[str(row["channel"]), str(row["campaign"])]
        of[0] += float(str(row["spend"]))
        of[1] += float(str(row["revenue"]))
    campaigns = []
    for n, (key, (spend, revenue)) in enumerate(sorted(sums.items())):
        budget = 300 * round(spend / OVER_BUDGET.get(key, 0.94 + 0.01 * (n % 6)) / 300)
        invoiced = round(spend * OVER_INVOICED.get(key, 0.99 + 0.005 * (n % 5)), 2)
        cost = spend * (1 + TEAMS[key[0]][2] / 100)
        target = round(revenue / cost * UNDER_TARGET.get(key, 0.9), 1)
        campaigns.append(Campaign(*key, spend, revenue, budget, invoiced, target))
    return Company(text.getvalue(), len(rows), campaigns)


def file_of(campaign: Campaign) -> str:
    return f"{campaign.channel}_{campaign.name}.md".lower().replace(" ", "-")


def write_briefs(company: Company, folder: Path) -> None:
    folder.mkdir(parents=True)
    regions = {(it.channel, it.name): it.regions for it in make_csv.CAMPAIGNS}
    for n, it in enumerate(company.campaigns):
        brief = BRIEF.format(
            name=it.name,
            channel=it.channel,
            target=it.target,
            audience=AUDIENCES[it.channel],
            regions=", ".join(regions[it.channel, it.name]),
            frequency=3 + n % 4,
        )
        (folder / file_of(it)).write_text(brief, encoding="utf-8")


def write_database(company: Company, file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.executescript(
            "CREATE TABLE budgets (channel TEXT, campaign TEXT, month TEXT, budget INTEGER);"
            "CREATE TABLE invoices (number TEXT, channel TEXT, campaign TEXT, month TEXT, vendor TEXT, amount REAL);"
            "CREATE TABLE reviews (channel TEXT, campaign TEXT, why TEXT);"
        )
        for n, it in enumerate(company.campaigns):
            for m, month in enumerate(MONTHS):
                # The last invoice has the cents that are left.
                part = round(it.invoiced / 3, 2)
                amount = part if m < 2 else round(it.invoiced - 2 * part, 2)
                number, vendor = f"R-{2600 + 3 * n + m}", TEAMS[it.channel][1]
                budget = (it.channel, it.name, month, it.budget // 3)
                database.execute("INSERT INTO budgets VALUES (?, ?, ?, ?)", budget)
                invoice = (number, it.channel, it.name, month, vendor, amount)
                database.execute("INSERT INTO invoices VALUES (?, ?, ?, ?, ?, ?)", invoice)
    database.close()


def read(file: Path, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(file)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def write_graph(company: Company, file: Path) -> None:
    """In the format of the server for memory: a line for each node and each relation."""
    lines: list[dict[str, Any]] = []
    for channel, (lead, agency, fee) in TEAMS.items():
        team = f"{channel} team"
        observations = [
            f"lead: {lead}",
            f"agency: {agency}",
            f"fee_percent: {fee}",
            "meets: every second Tuesday, with finance in the first week of a quarter",
            f"channel: {channel}, since January 2025 in all regions in which it is sold",
        ]
        lines.append({"type": "entity", "name": team, "entityType": "team", "observations": observations})
        lines.append({"type": "entity", "name": lead, "entityType": "person", "observations": [f"leads the {team}"]})
        lines.append({"type": "relation", "from": lead, "to": team, "relationType": "leads"})
        for it in company.campaigns:
            if it.channel == channel:
                node = f"{channel}: {it.name}"
                observations = [f"brief: {QUARTER}/{file_of(it)}", "approved by finance in March 2026"]
                lines.append({"type": "entity", "name": node, "entityType": "campaign", "observations": observations})
                lines.append({"type": "relation", "from": team, "to": node, "relationType": "runs"})
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
