"""Draws the chart from the uploaded results; runs in a session of our own server.

The chart has a light background of its own, so that it is readable on any page; text stays text.
"""

import json

import matplotlib.pyplot as plt

PAPER, INK, FAINT = "#fbfaf7", "#22303c", "#d9d6cd"
BARS = [
    ("ours", "llm-sandbox (ours)", "#0b7a75"),
    ("docker", "docker exec, docker run", "#8a97a3"),
    ("peer", "PyPI llm-sandbox", "#d98e32"),
]
ROWS = {
    "print": "print(2+2)",
    "pandas": "small pandas",
    "group_by": "group-by, 20 KB CSV",
    "traceback": "a traceback",
    "matplotlib": "matplotlib PNG",
    "seaborn": "seaborn PNG",
    "upload": "1 MB upload",
    "download": "10 MB read",
    "first_pooled": "new session, pooled",
    "first_named": "new session, named",
}


def label(ms):
    return f"{ms:.1f}" if ms < 10 else f"{ms:,.0f}"


with open("/mnt/data/results.json") as file:
    results = json.load(file)
latency = results["latency"]
bars = [bar for bar in BARS if any(latency.get(row, {}).get(bar[0]) for row in ROWS)]

# Only one family: every text of the SVG would otherwise name the fallbacks.
plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "bench",
        "font.size": 10,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "text.color": INK,
    }
)
fig, ax = plt.subplots(figsize=(9, 8), facecolor=PAPER)
ax.set_facecolor(PAPER)
height = 0.8 / len(bars)
halo = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
least = 1e9
for place, (key, name, colour) in enumerate(bars):
    first = True
    for row_number, row in enumerate(ROWS):
        found = latency.get(row, {}).get(key)
        if not found:
            continue
        least = min(least, found["median"])
        y = row_number + (place - (len(bars) - 1) / 2) * height
        ax.barh(y, found["median"], height * 0.9, color=colour, label=name if first else None)
        ax.plot([found["median"], found["p95"]], [y, y], color=INK, linewidth=0.8)
        ax.annotate(
            label(found["median"]),
            (max(found["median"], found["p95"]), y),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox=halo,
        )
        first = False
floors = [(y, latency[row]["ahead"]["median"]) for y, row in enumerate(ROWS) if latency.get(row, {}).get("ahead")]
least = min([least, *(ms for _, ms in floors)])
lowest = {"color": "#b3123b", "linewidth": 1.5}
ax.vlines(
    [ms for _, ms in floors],
    [y - 0.45 for y, _ in floors],
    [y + 0.45 for y, _ in floors],
    **lowest,
    label="a bare process, forked ahead",
)
ax.set_xscale("log")
ax.set_xlim(left=least / 2)
ax.set_xlim(right=ax.get_xlim()[1] * 1.6)
ax.set_yticks(range(len(ROWS)), ROWS.values())
ax.set_ylim(len(ROWS) - 0.4, -0.6)
ax.tick_params(colors=INK, length=0)
ax.minorticks_off()
ax.xaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
ax.grid(axis="x", color=FAINT, linewidth=0.8)
ax.set_axisbelow(True)
for side in ax.spines.values():
    side.set_visible(False)
machine = results["machine"]
title = "One call as its client sees it: medians, log scale; thin lines reach to p95\n"
ax.set_title(title, loc="left", fontsize=12, color=INK)
engine, date = results["docker"]["engine"], results["date"][:10]
where = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; Docker {engine}; {date}"
ax.text(0, 1.015, where, transform=ax.transAxes, fontsize=8.5)
ax.legend(loc="lower center", bbox_to_anchor=(0.42, -0.11), ncols=4, frameon=False, fontsize=9)
fig.savefig("/mnt/data/chart.svg", facecolor=PAPER, bbox_inches="tight", metadata={"Date": None, "Creator": None})
