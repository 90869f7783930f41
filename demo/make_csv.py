#!/usr/bin/env python3
"""Make the marketing data of the demo: eighteen months of a web shop's advertising, as a CSV.

A row is what one campaign did in one region on one day. The seed fixes every byte of the file, so that two runs of
the demo can be compared. The story in the numbers (each part of it can be found again by an analysis):

* a year's shape with a peak in late November, and a week's shape that differs between channels;
* six channels that earn very different returns; social gets dearer month by month;
* a product launch that also lifts search and email while it lasts;
* a weekend on which the checkout was down: money was spent and nearly nothing was sold.

The file is dirty in the ways in which real exports are. `DIRT` states each defect and its rate, and `generate` counts
what it did, so that a cleaning step can be checked against the truth.

Only `Random.random()` is used: Python promises the same numbers from the same seed for that method alone, not for
`gauss` or `choice`.
"""

import argparse
import csv
import io
import math
import random
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

SEED = 20260701
FIRST_DAY = date(2025, 1, 1)
LAST_DAY = date(2026, 6, 30)
CHECKOUT_DOWN = (date(2025, 9, 20), date(2025, 9, 21))
LAUNCH_DAY = date(2026, 3, 2)

COLUMNS = ["date", "channel", "campaign", "region", "spend", "impressions", "clicks", "conversions", "revenue"]

DIRT = {
    "missing_spend": 0.012,
    "missing_conversions": 0.008,
    "missing_revenue": 0.010,
    "missing_region": 0.004,
    "currency_text": 0.020,  # $1,234.50, in spend and in revenue each
    "negative_spend": 0.003,  # a sign typed by mistake
    "untidy_channel": 0.025,  # " Email ", "EMAIL"
    "second_date_format": 0.030,  # 14/03/2026
    "duplicate_row": 0.006,  # the export sent a line twice
}


@dataclass(frozen=True)
class Channel:
    """The cost of a channel and the behaviour of its visitors; `week` is the weight of Monday to Sunday."""

    cpm: float  # price of 1,000 impressions (of 1,000 mails sent for email)
    ctr: float  # clicks per impression
    cvr: float  # orders per click
    order_value: float
    week: tuple[float, ...]
    cpm_growth: float = 0.0  # per month


@dataclass(frozen=True)
class Campaign:
    """A line of the media plan. `daily_spend` is for all its regions together, before season and noise."""

    channel: str
    name: str
    daily_spend: float
    regions: tuple[str, ...]
    cvr: float = 1.0  # how well its visitors buy, relative to the channel
    first: date = FIRST_DAY
    last: date = LAST_DAY
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)


CHANNELS = {
    "Search": Channel(38.0, 0.042, 0.050, 82.0, (1.12, 1.10, 1.08, 1.04, 0.98, 0.80, 0.88)),
    "Social": Channel(7.6, 0.011, 0.032, 61.0, (0.92, 0.92, 0.94, 0.98, 1.04, 1.12, 1.08), cpm_growth=0.033),
    "Display": Channel(3.2, 0.0038, 0.0120, 64.0, (1.02, 1.02, 1.02, 1.00, 0.98, 0.96, 1.00)),
    "Email": Channel(4.0, 0.026, 0.031, 58.0, (0.90, 1.15, 1.00, 1.15, 0.95, 0.85, 1.00)),
    "Affiliate": Channel(14.0, 0.020, 0.046, 76.0, (1.00, 0.98, 0.98, 1.00, 1.06, 1.02, 0.96)),
    "Video": Channel(11.0, 0.0075, 0.0225, 69.0, (0.90, 0.90, 0.92, 0.96, 1.06, 1.16, 1.10)),
}

# Size of the market, and how readily its visitors buy.
REGIONS = {
    "Bayern": (1.00, 1.06),
    "Greater London": (1.25, 1.00),
    "Île-de-France": (1.10, 0.94),
    "New York": (1.45, 1.08),
    "Québec": (0.60, 0.90),
    "São Paulo": (0.90, 0.82),
    "Zürich": (0.45, 1.18),
    "東京": (1.15, 1.02),
}

# Pairs of channel and region in which the channel works better or worse than both rates predict.
AFFINITY = {
    ("東京", "Video"): 1.75,
    ("東京", "Email"): 0.72,
    ("São Paulo", "Social"): 1.55,
    ("São Paulo", "Search"): 0.80,
    ("Québec", "Affiliate"): 1.30,
    ("Île-de-France", "Display"): 0.70,
    ("Bayern", "Affiliate"): 1.22,
    ("New York", "Search"): 1.12,
    ("Greater London", "Email"): 1.18,
}

EVERYWHERE = tuple(REGIONS)
WITHOUT_QUEBEC = tuple(region for region in REGIONS if region != "Québec")
WITHOUT_TOKYO = tuple(region for region in REGIONS if region != "東京")

CAMPAIGNS = (
    Campaign("Search", "Brand Terms", 1150, EVERYWHERE, cvr=1.45),
    Campaign("Search", "Generic Terms", 2300, EVERYWHERE, cvr=0.78),
    Campaign("Social", "Lookalike Prospecting", 1900, EVERYWHERE, cvr=0.88),
    Campaign("Social", "Cart Reminder", 520, EVERYWHERE, cvr=1.50),
    Campaign("Display", "Awareness Reach", 1250, WITHOUT_QUEBEC, cvr=0.72),
    Campaign("Display", "Retargeting", 640, WITHOUT_QUEBEC, cvr=1.40),
    Campaign("Email", "Newsletter", 520, EVERYWHERE, weekdays=(1, 3)),
    Campaign("Email", "Win-back", 130, EVERYWHERE, cvr=1.20),
    Campaign("Affiliate", "Partner Blogs", 700, WITHOUT_TOKYO, cvr=1.12),
    Campaign("Affiliate", "Coupon Sites", 560, WITHOUT_TOKYO, cvr=0.90),
    Campaign("Video", "Product Stories", 1050, EVERYWHERE),
    Campaign("Search", "Black Friday", 2600, EVERYWHERE, 1.15, date(2025, 11, 17), date(2025, 12, 1)),
    Campaign("Social", "Black Friday", 1900, EVERYWHERE, 1.10, date(2025, 11, 17), date(2025, 12, 1)),
    Campaign("Social", "Spring Launch", 1700, EVERYWHERE, 1.05, LAUNCH_DAY, date(2026, 5, 3)),
    Campaign("Video", "Spring Launch", 1300, EVERYWHERE, 1.10, LAUNCH_DAY, date(2026, 4, 12)),
)


class Dice(random.Random):
    """The few kinds of chance that the data needs, all from `random()`."""

    def normal(self) -> float:
        """About standard normal (Irwin-Hall), without the tails that would make a budget absurd."""
        return sum(self.random() for _ in range(12)) - 6.0

    def spread(self, sigma: float) -> float:
        """A factor around 1."""
        return math.exp(sigma * self.normal())

    def count(self, mean: float) -> int:
        """About Poisson."""
        if mean > 30:
            return max(0, round(mean + math.sqrt(mean) * self.normal()))
        threshold, product, events = math.exp(-mean), self.random(), 0
        while product > threshold:
            product *= self.random()
            events += 1
        return events

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def one_of(self, options: list[str]) -> str:
        return options[int(self.random() * len(options))]


def season(day: date) -> float:
    """Demand over the year: a November peak, a tired January, a quiet August."""
    angle = 2 * math.pi * (day.timetuple().tm_yday - 335) / 365.25
    peak = 0.75 * math.exp(-(((day - date(day.year, 11, 28)).days / 7.0) ** 2))
    holiday = 0.35 * math.exp(-(((day - date(day.year, 12, 14)).days / 8.0) ** 2))
    return 1.0 + 0.13 * math.cos(angle) + 0.05 * math.cos(2 * angle) + peak + holiday


def demand(day: date, channel: str) -> float:
    """How much readier to buy than usual the visitors of a channel are on a day."""
    factor: float = season(day) ** 0.35
    if day >= LAUNCH_DAY and channel in ("Search", "Email"):
        factor *= 1.0 + 0.30 * math.exp(-(day - LAUNCH_DAY).days / 35.0)
    if day in CHECKOUT_DOWN:
        factor *= 0.03
    return factor


def true_rows(dice: Dice) -> list[dict[str, object]]:
    """The true data, before the export adds defects."""
    rows = []
    mood = dict.fromkeys(CAMPAIGNS, 1.0)
    day = FIRST_DAY
    while day <= LAST_DAY:
        months = (day - FIRST_DAY).days / 30.44
        for campaign in CAMPAIGNS:
            # Budgets wander from day to day and come back, as hands on a dashboard make them do.
            mood[campaign] = mood[campaign] ** 0.96 * dice.spread(0.04)
            if not campaign.first <= day <= campaign.last or day.weekday() not in campaign.weekdays:
                continue
            channel = CHANNELS[campaign.channel]
            weights = sum(REGIONS[region][0] for region in campaign.regions)
            for region in campaign.regions:
                weight, readiness = REGIONS[region]
                plan = campaign.daily_spend * weight / weights
                spend = plan * season(day) * channel.week[day.weekday()] * mood[campaign] * dice.spread(0.16)
                cpm = channel.cpm * (1 + channel.cpm_growth) ** months * dice.spread(0.07)
                impressions = round(spend / cpm * 1000)
                clicks = min(impressions, dice.count(impressions * channel.ctr * dice.spread(0.10)))
                cvr = channel.cvr * campaign.cvr * readiness * AFFINITY.get((region, campaign.channel), 1.0)
                # The next dollar of a budget always buys less eager people than the last one did.
                saturation = (spend / plan) ** -0.15
                orders = min(clicks, dice.count(clicks * cvr * saturation * demand(day, campaign.channel)))
                revenue = orders * channel.order_value * dice.spread(0.30 / math.sqrt(orders)) if orders else 0.0
                rows.append(
                    {
                        "date": day.isoformat(),
                        "channel": campaign.channel,
                        "campaign": campaign.name,
                        "region": region,
                        "spend": f"{spend:.2f}",
                        "impressions": impressions,
                        "clicks": clicks,
                        "conversions": orders,
                        "revenue": f"{revenue:.2f}",
                    }
                )
        day += timedelta(days=1)
    return rows


def spoil(row: dict[str, object], dice: Dice, done: Counter[str]) -> dict[str, object]:
    """One line as the export would give it; adds what was done to `done`."""

    def happens(defect: str) -> bool:
        hit = dice.chance(DIRT[defect])
        done[defect] += hit
        return hit

    row = dict(row)
    if happens("untidy_channel"):
        name = str(row["channel"])
        row["channel"] = dice.one_of([f" {name} ", name.upper(), name.lower(), f"{name} "])
    if happens("second_date_format"):
        row["date"] = date.fromisoformat(str(row["date"])).strftime("%d/%m/%Y")
    if happens("missing_region"):
        row["region"] = ""
    if happens("missing_spend"):
        row["spend"] = dice.one_of(["", "n/a"])
    elif happens("negative_spend"):
        row["spend"] = f"-{row['spend']}"
    elif happens("currency_text"):
        row["spend"] = f"${float(str(row['spend'])):,.2f}"
    if happens("missing_conversions"):
        row["conversions"] = dice.one_of(["", "n/a"])
    if happens("missing_revenue"):
        row["revenue"] = dice.one_of(["", "n/a"])
    elif happens("currency_text"):
        row["revenue"] = f"${float(str(row['revenue'])):,.2f}"
    return row


def generate(seed: int = SEED) -> tuple[bytes, Counter[str]]:
    """The CSV (UTF-8, with its header) and how many rows and defects of each kind it holds."""
    dice = Dice(seed)
    planted: Counter[str] = Counter()
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in true_rows(dice):
        line = spoil(row, dice, planted)
        copies = 2 if dice.chance(DIRT["duplicate_row"]) else 1
        table.writerows([line] * copies)
        planted["rows"] += copies
        planted["duplicate_row"] += copies - 1
    return text.getvalue().encode(), planted


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo's marketing CSV.")
    parser.add_argument("path", type=Path, help="where to write it")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    options = parser.parse_args()
    data, planted = generate(options.seed)
    options.path.write_bytes(data)
    print(f"{options.path}: {planted.pop('rows'):,} rows, {len(data):,} bytes")
    for defect, count in sorted(planted.items()):
        print(f"  {defect:<20} {count:>5,}")


if __name__ == "__main__":
    main()
