"""The programs that every contestant runs without any change, and their expected results.

They are typical programs of models, and do not favour any contestant.
"""

import random
from collections import Counter
from dataclasses import dataclass

from measure import Ran, right

PICTURE = "picture.png"
TABLE = "sales.csv"

PRINT = "print(2+2)"

PANDAS = """\
import pandas as pd

frame = pd.DataFrame({"name": ["a", "b", "c"], "amount": [1, 2, 3]})
print(frame["amount"].sum())
"""

GROUP_BY = f"""\
import pandas as pd

sales = pd.read_csv("/mnt/data/{TABLE}")
for region, amount in sales.groupby("region")["amount"].sum().items():
    print(region, amount)
"""

MATPLOTLIB = f"""\
import matplotlib.pyplot as plt

days = list(range(1, 31))
fig, ax = plt.subplots(figsize=(8, 4.5))
ax.plot(days, [day * day % 17 for day in days], label="visits")
ax.set_title("Visits by day")
ax.set_xlabel("day")
ax.legend()
fig.savefig("/mnt/data/{PICTURE}")
"""

SEABORN = f"""\
import pandas as pd
import seaborn as sns

frame = pd.DataFrame({{"region": ["north", "south", "east"] * 8, "amount": range(24)}})
ax = sns.barplot(data=frame, x="region", y="amount")
ax.figure.savefig("/mnt/data/{PICTURE}")
"""

TRACEBACK = """\
def share(part, whole):
    return part / whole

print(share(1, 0))
"""


def table() -> bytes:
    """20 KB of CSV, the same in every run."""
    chosen = random.Random(1)
    regions, products = ("north", "south", "east", "west"), ("lamp", "chair", "table")
    lines = ["day,region,product,amount"]
    while sum(map(len, lines)) + len(lines) < 20_000:
        lines.append(f"{len(lines)},{chosen.choice(regions)},{chosen.choice(products)},{chosen.randrange(1000)}")
    return ("\n".join(lines) + "\n").encode()


def totals(csv: bytes) -> str:
    """The output of GROUP_BY for this CSV, computed without pandas."""
    sums: Counter[str] = Counter()
    for line in csv.decode().splitlines()[1:]:
        _, region, _, amount = line.split(",")
        sums[region] += int(amount)
    return "".join(f"{region} {sums[region]}\n" for region in sorted(sums))


@dataclass(frozen=True)
class Workload:
    key: str
    code: str
    stdout: str = ""
    draws: bool = False
    # Slow programs run only every so many rounds, to limit the total time.
    every: int = 1

    def check(self, ran: Ran) -> None:
        right((ran.exit_code, ran.stdout) == (0, self.stdout), self.key, ran)


class Failing(Workload):
    """A program with a mistake: its traceback is the answer."""

    def check(self, ran: Ran) -> None:
        last = ran.stderr.rstrip().rpartition("\n")[2]
        right((ran.exit_code, ran.stdout, last) == (1, "", "ZeroDivisionError: division by zero"), self.key, ran)
        right("in share" in ran.stderr, self.key, ran)


def check_picture(content: bytes) -> None:
    whole = content.startswith(b"\x89PNG\r\n\x1a\n") and content[-8:-4] == b"IEND"
    right(whole, "a whole PNG file", len(content), content[:16])


WORKLOADS = [
    Workload("print", PRINT, "4\n"),
    Workload("pandas", PANDAS, "6\n"),
    Workload("group_by", GROUP_BY, totals(table())),
    Failing("traceback", TRACEBACK),
    Workload("matplotlib", MATPLOTLIB, draws=True, every=2),
    Workload("seaborn", SEABORN, draws=True, every=2),
]
BY_KEY = {workload.key: workload for workload in WORKLOADS}
