import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

sns.set_theme(style="whitegrid")
frame = pd.DataFrame({"kind": list("abab"), "value": [1.0, 2.0, 3.0, 4.0], "group": list("xxyy")})
axes = sns.barplot(data=frame, x="kind", y="value", hue="group", errorbar=None)
axes.figure.savefig("bars.png")
print(len(axes.patches), sns.color_palette()[0], plt.rcParams["axes.grid"])
