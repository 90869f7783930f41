"""Six charts from clean.pkl. Each title states what the chart shows, with figures worked out from the data.

The titles and a sentence on each chart also go to findings.json, so that the report says the same as the charts.
"""

import json
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager
from matplotlib.dates import ConciseDateFormatter, MonthLocator
from matplotlib.ticker import FuncFormatter, PercentFormatter

INK, MUTED, GRID, ALERT = "#1F2D3A", "#66758A", "#E4E8ED", "#C8443A"
BACKING = {"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none"}  # keeps lines from running through a label
DASHES = (0, (4, 3))
COLOURS = {
    "Search": "#2A5B8C",
    "Affiliate": "#E0A030",
    "Social": "#D9694F",
    "Email": "#3B8C6E",
    "Display": "#8C97A5",
    "Video": "#7E62A0",
}

installed = {font.name for font in font_manager.fontManager.ttflist}


def first_installed(*families):
    return [family for family in families if family in installed][:1]


sns.set_theme(
    style="white",
    rc={
        # One for Latin letters and one for the Japanese region: matplotlib takes the first that has the glyph.
        "font.family": first_installed("Noto Sans", "Liberation Sans", "DejaVu Sans")
        + first_installed("WenQuanYi Micro Hei", "Noto Sans CJK JP"),
        "axes.unicode_minus": False,  # Noto Sans has no minus sign of its own
        "text.parse_math": False,  # two dollar signs in a title are money, not a formula
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": GRID,
        "axes.labelsize": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelsize": 10.5,
        "ytick.labelsize": 10.5,
        "grid.color": GRID,
    },
)

df = pd.read_pickle("clean.pkl")
findings = {"charts": []}


def sums(by, rows=df):
    """Returns spend and results, with their ratios."""
    total = rows.groupby(by)[["spend", "impressions", "clicks", "conversions", "revenue"]].sum()
    return total.assign(
        roas=total["revenue"] / total["spend"],
        cpm=total["spend"] / total["impressions"] * 1000,
        cvr=total["conversions"] / total["clicks"],
    )


def money(value, _=None):
    if abs(value) >= 1e6:
        return f"${value / 1e6:,.1f}M"
    return f"${value / 1e3:,.0f}K" if abs(value) >= 1e4 else f"${value:,.0f}"


def signed(share):
    # An en dash, which every font has, where a typographer would put a minus sign.
    return f"{share:+.0%}".replace("-", "\N{EN DASH}")


def listed(names):
    names = list(names)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def chart(subplots=(1, 1)):
    return plt.subplots(*subplots, figsize=(10, 5.625), sharex=subplots != (1, 1), layout="constrained")


def head(fig, text, top, **font):
    """Put a text below `top`, in as few lines as its font allows and these of like length, and tell where it ends."""
    placed = fig.text(0.025, top, text, va="top", **font)
    for width in range(120, 40, -4):
        lines = textwrap.wrap(text, width)
        placed.set_text("\n".join(lines))
        if placed.get_window_extent().width < 0.95 * fig.bbox.width:
            break
    balanced = next(wrapped for n in range(20, width + 1) if len(wrapped := textwrap.wrap(text, n)) == len(lines))
    placed.set_text("\n".join(balanced))
    return placed.get_window_extent().y0 / fig.bbox.height


def save(fig, name, title, caption, reading):
    """1600 x 900 pixels, under a title that tells what to see and a line that tells how to read it."""
    below = head(fig, title, 0.965, fontsize=14.5, fontweight="bold", linespacing=1.1)
    below = head(fig, caption, below - 0.012, fontsize=10.5, color=MUTED)
    fig.get_layout_engine().set(rect=(0.015, 0.02, 0.97, below - 0.05))
    fig.savefig(f"{name}.png", dpi=160)
    plt.close(fig)
    findings["charts"].append({"file": f"{name}.png", "title": title, "reading": reading})
    print(f"{name}.png: {title}")


def name_rows(ax, names, **font):
    ax.set_yticks(range(len(names)), names, va="center", color=INK, **{"fontsize": 12, **font})
    ax.tick_params(axis="y", length=0)


def label(ax, text, at, shift, **font):
    """A text beside a point; `shift` is in points of print, so that it does not depend on the scale."""
    ax.annotate(text, at, shift, textcoords="offset points", va="center", **font)


def spend_and_revenue_by_day():
    daily = sums("date")
    week = daily.rolling(7, center=True).mean()

    # A day on which money was spent as usual and almost nothing came back is a fault, not the season.
    usual = daily["roas"].rolling(29, center=True, min_periods=15).median()
    broken = daily[daily["roas"] < 0.3 * usual]
    lost = (usual * daily["spend"] - daily["revenue"])[broken.index].sum()

    fig, ax = chart()
    for column, colour in (("revenue", COLOURS["Search"]), ("spend", COLOURS["Social"])):
        ax.plot(daily.index, daily[column], color=colour, alpha=0.22, lw=0.8)
        ax.plot(week.index, week[column], color=colour, lw=2.4)
        last_day = week[column].last_valid_index()
        end = (last_day, week.loc[last_day, column])
        label(ax, column.capitalize(), end, (8, 0), color=colour, fontsize=11.5, fontweight="bold")
    ax.fill_between(week.index, week["spend"], week["revenue"], color=COLOURS["Search"], alpha=0.06, lw=0)

    top = week["revenue"].max() * 1.24
    flights = df.groupby("campaign")["date"].agg(["min", "max"]).sort_values("min")
    flights = flights[flights["max"] - flights["min"] < pd.Timedelta(days=120)]
    effects = []
    for name, (first, last) in flights.iterrows():
        during = daily.loc[first:last, "revenue"].mean()
        before = daily.loc[first - pd.Timedelta(days=28) : first - pd.Timedelta(days=1), "revenue"].mean()
        effects.append(f"{name} {signed(during / before - 1)}")
        ax.axvspan(first, last, color=COLOURS["Affiliate"], alpha=0.14, lw=0)
        ax.text(first + (last - first) / 2, top * 0.985, name, ha="center", va="top", fontsize=10, color="#8A6414")

    title = f"Revenue peaks at {money(week['revenue'].max())} a day in {week['revenue'].idxmax():%B}"
    if len(broken):
        first = broken.index[0]
        ax.plot(broken.index, broken["revenue"], "o", ms=4.5, color=ALERT, zorder=4)
        label(
            ax,
            f"{first:%d %b %Y}, {len(broken)} days:\nspend goes on, sales stop",
            (first, 1.25 * daily["revenue"].median()),
            (-28, 62),
            fontsize=10,
            color=ALERT,
            ha="center",
            arrowprops={"arrowstyle": "-|>", "color": ALERT, "lw": 1.2, "shrinkA": 4},
        )
        findings["outage"] = {"first_day": f"{first:%d %B %Y}", "days": len(broken), "lost_revenue": round(lost)}
        title += f"; {len(broken)} dead days in {first:%B} cost about {money(lost)}"

    ax.set(xlim=(daily.index[0], daily.index[-1] + pd.Timedelta(days=42)), ylim=(0, top))
    ax.yaxis.set_major_formatter(FuncFormatter(money))
    ax.xaxis.set_major_locator(MonthLocator(interval=2))
    ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator(), show_offset=False))
    ax.grid(axis="y")
    sns.despine(ax=ax, left=True)
    usual_day = daily[["revenue", "spend"]].median()
    save(
        fig,
        "chart_1_timeline",
        title,
        "Revenue and spend a day: thin lines are days, thick ones the mean of seven. Shaded: campaigns of a few weeks.",
        f"An ordinary day brings {money(usual_day['revenue'])} on {money(usual_day['spend'])} of spend. "
        f"Mean daily revenue against the four weeks before: {', '.join(effects)}.",
    )


def roas_by_channel():
    channels = sums("channel").sort_values("roas", ascending=False)
    roas, spend = channels["roas"], channels["spend"]
    mean = channels["revenue"].sum() / spend.sum()

    fig, ax = chart()
    sns.barplot(channels, x="roas", y="channel", hue="channel", palette=COLOURS, saturation=1, width=0.66, ax=ax)
    for value, name in ((1, "break-even"), (mean, f"all channels ${mean:.2f}")):
        ax.axvline(value, color=INK, lw=1.1, ls=DASHES, zorder=3)
        ax.text(value + 0.06, len(roas) - 0.42, name, fontsize=10, va="center")
    for place, value in enumerate(roas):
        label(ax, f"${value:.2f}", (value, place), (7, 0), fontsize=13, fontweight="bold", zorder=4, bbox=BACKING)
    name_rows(ax, [f"{channel}\n{money(amount)} spent" for channel, amount in spend.items()], linespacing=1.25)
    ax.set(xlabel=None, ylabel=None, xlim=(0, roas.max() * 1.1), ylim=(len(roas) - 0.2, -0.55))
    ax.xaxis.set_visible(False)
    sns.despine(ax=ax, left=True, bottom=True)

    best, biggest, losing = roas.index[0], spend.idxmax(), roas[roas < 1].index
    title = f"{best} brings back ${roas[best]:.0f} for a dollar"
    if len(losing):
        title += f"; {listed(losing)} " + (
            "costs more than it brings" if len(losing) == 1 else "cost more than they bring"
        )
    share = spend / spend.sum()
    save(
        fig,
        "chart_2_roas_by_channel",
        title,
        "Return on ad spend (revenue for a dollar of spend) by channel, and what was spent.",
        f"A high return is not yet a large one: {best} had {share[best]:.0%} of the spend, "
        f"{biggest} {share[biggest]:.0%}. All channels together return ${mean:.2f}.",
    )


def share_of_spend_and_revenue():
    share = sums("channel")[["spend", "revenue"]]
    share = (share / share.sum()).sort_values("spend")
    weak = share[share["revenue"] < share["spend"]]
    gap = (share["revenue"] - share["spend"]) * 100

    fig, ax = chart()
    for place, (spend, revenue) in enumerate(share.to_numpy()):
        colour, outward = (COLOURS["Email"], 1) if revenue > spend else (ALERT, -1)
        outside, inside = ("left", "right")[::outward]
        arrow = {
            "arrowstyle": "-|>,head_width=.32,head_length=.6",
            "color": colour,
            "lw": 3.2,
            "shrinkA": 7,
            "shrinkB": 0,
        }
        ax.annotate("", (revenue, place), (spend, place), arrowprops=arrow)
        ax.plot(spend, place, "o", ms=12, mfc="white", mec=MUTED, mew=2.2, zorder=3)
        bold = {"color": colour, "fontsize": 11.5, "fontweight": "bold"}
        label(ax, f"{revenue:.0%} of revenue", (revenue, place), (9 * outward, 0), ha=outside, bbox=BACKING, **bold)
        plain = {"color": MUTED, "fontsize": 11}
        label(ax, f"{spend:.0%} of spend", (spend, place), (-12 * outward, 0), ha=inside, bbox=BACKING, **plain)
    name_rows(ax, share.index)
    largest = share.max(axis=None)
    ax.set(xlim=(-0.10, largest + 0.11), ylim=(-0.6, len(share) - 0.4), xticks=np.arange(0, largest + 0.05, 0.1))
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(axis="x")
    sns.despine(ax=ax, left=True, bottom=True)
    save(
        fig,
        "chart_3_budget_balance",
        f"{listed(weak.index[::-1])} take {weak['spend'].sum():.0%} of the budget "
        f"and bring {weak['revenue'].sum():.0%} of the revenue",
        "Each arrow goes from a channel's share of the spend (ring) to its share of the revenue (tip).",
        f"{gap.idxmax()} brings {gap.max():.0f} points more of the revenue than it takes of the budget; "
        f"{gap.idxmin()} falls {-gap.min():.0f} points short.",
    )


def roas_by_region_and_channel():
    channels = sums("channel")["roas"].sort_values(ascending=False)
    regions = sums("region")["roas"].sort_values(ascending=False)
    roas = sums(["region", "channel"])["roas"].unstack().loc[regions.index, channels.index]
    relative = roas / channels - 1
    limit = np.ceil(relative.abs().max(axis=None) * 10) / 10

    fig, ax = chart()
    ax.set_facecolor("#F3F5F7")
    sns.heatmap(
        relative,
        annot=roas.map(lambda value: "" if np.isnan(value) else f"{value:.1f}"),
        fmt="",
        cmap=sns.diverging_palette(14, 160, s=75, l=52, as_cmap=True),
        vmin=-limit,
        vmax=limit,
        linewidths=2.5,
        linecolor="white",
        annot_kws={"size": 12.5, "weight": "bold"},
        cbar_kws={"format": PercentFormatter(1, decimals=0), "pad": 0.015, "label": "against the channel's mean"},
        ax=ax,
    )
    ax.collections[0].colorbar.outline.set_visible(False)
    names = [f"{name}\nmean {value:.2f}" for name, value in channels.items()]
    ax.set_xticks(np.arange(len(names)) + 0.5, names, fontsize=11, color=INK)
    ax.tick_params(axis="x", length=0, labeltop=True, labelbottom=False)
    ax.tick_params(axis="y", length=0, rotation=0, labelsize=12, labelcolor=INK)
    ax.set(xlabel=None, ylabel=None)

    def cell(place):
        return f"{place[1]} in {place[0]} ({signed(relative.loc[place])}"

    best, worst = relative.stack().idxmax(), relative.stack().idxmin()
    save(
        fig,
        "chart_4_roas_heatmap",
        f"Best fit: {cell(best)} on its mean). Worst: {cell(worst)})",
        "ROAS by region and channel. The colour compares it with the channel's mean; an empty cell was not booked.",
        "The regions are in the order of their return over all channels, "
        f"from {regions.index[0]} ({regions.iloc[0]:.2f}) to {regions.index[-1]} ({regions.iloc[-1]:.2f}).",
    )


def weekly_roas_by_campaign():
    weekly = sums(["channel", "campaign", pd.Grouper(key="date", freq="W")]).reset_index()
    # A campaign that ran on several channels is told apart by them.
    several = weekly.groupby("campaign")["channel"].transform("nunique") > 1
    weekly["name"] = weekly["campaign"] + (" (" + weekly["channel"] + ")").where(several, "")
    middle = weekly.groupby("name")["roas"].median().sort_values(ascending=False)
    losing = (middle < 1).sum()

    lasting = weekly[weekly.groupby("name")["roas"].transform("size") >= 12]
    quartiles = lasting.groupby("name")["roas"].quantile([0.25, 0.75]).unstack()
    band = ((quartiles[0.75] - quartiles[0.25]) / middle[quartiles.index]).sort_values()

    fig, ax = chart()
    look = {"saturation": 1, "width": 0.62, "linewidth": 1.1, "linecolor": INK, "fliersize": 2.2}
    sns.boxplot(
        weekly, x="roas", y="name", order=middle.index, hue="channel", palette=COLOURS, dodge=False, ax=ax, **look
    )
    ax.axvline(1, color=ALERT, lw=1.4, ls=DASHES, zorder=1)
    ax.text(1.02, -0.75, "break-even", color=ALERT, fontsize=10, va="center")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter("{:g}".format))
    ax.minorticks_off()
    ax.set(xlabel=None, ylabel=None, xlim=(weekly["roas"].min() * 0.8, weekly["roas"].max() * 1.15))
    ax.set_ylim(len(middle) - 0.4, -1.1)
    name_rows(ax, middle.index, fontsize=10.5)
    ax.legend(title=None, frameon=False, loc="lower right", fontsize=10)
    ax.grid(axis="x")
    sns.despine(ax=ax, left=True)
    save(
        fig,
        "chart_5_campaigns",
        f"{losing} of {len(middle)} campaigns {'loses' if losing == 1 else 'lose'} money in a usual week; "
        f"{middle.index[0]} earns ${middle.iloc[0]:.0f} for a dollar",
        "Weekly ROAS by campaign (log scale): the box holds the middle half of the weeks, the line is the median.",
        f"Steadiest is {band.index[0]}: half of its weeks lie within a band of {band.iloc[0]:.0%} of its median. "
        f"{band.index[-1]} swings most ({band.iloc[-1]:.0%}).",
    )


def monthly_roas_by_channel():
    roas = sums(["channel", pd.Grouper(key="date", freq="MS")])["roas"].unstack("channel")

    # The same months of both years, so that the season cancels out.
    end = df["date"].max()
    months = df[df["date"].dt.month <= end.month]
    before, now = (sums("channel", months[months["date"].dt.year == year]) for year in (end.year - 1, end.year))
    change = (now["roas"] / before["roas"] - 1).sort_values()

    fig, axes = chart((2, 3))
    for ax, (channel, shift) in zip(axes.flat, change.items(), strict=True):
        colour, line = COLOURS[channel], roas[channel]
        ax.plot(line.index, line, color=colour, lw=2.4)
        ax.fill_between(line.index, 0, line, color=colour, alpha=0.12, lw=0)
        ax.axhline(1, color=ALERT, lw=1, ls=DASHES)
        ax.set_ylim(0, line.max() * 1.2)
        ax.set_title(f"{channel}  {signed(shift)}", loc="left", fontsize=12.5, fontweight="bold", color=colour)
        ax.xaxis.set_major_locator(MonthLocator(bymonth=(1, 7)))
        ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator(), show_offset=False))
        ax.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        ax.grid(axis="y")
        sns.despine(ax=ax, left=True)
    fig.get_layout_engine().set(hspace=0.08, wspace=0.05)

    worst = change.index[0]
    old, new = before.loc[worst], now.loc[worst]
    dearer = new["cpm"] / old["cpm"] - 1
    save(
        fig,
        "chart_6_trend",
        f"{worst} is wearing out: its ROAS fell from {old['roas']:.1f} to {new['roas']:.1f} within a year",
        f"Monthly ROAS by channel; the change compares January to {end:%B %Y} with the same months of {end.year - 1}. "
        "Dashed: break-even.",
        f"On {worst}, a thousand impressions cost {abs(dearer):.0%} {'more' if dearer > 0 else 'less'} "
        "than a year before. "
        f"{old['cvr']:.1%} of the clicks led to an order then, {new['cvr']:.1%} do now.",
    )


spend_and_revenue_by_day()
roas_by_channel()
share_of_spend_and_revenue()
roas_by_region_and_channel()
weekly_roas_by_campaign()
monthly_roas_by_channel()

Path("findings.json").write_text(json.dumps(findings, indent=2, ensure_ascii=False), encoding="utf-8")
