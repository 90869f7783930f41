import os

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

frame = pd.DataFrame({"x": list("abab"), "y": [1, 2, 3, 4]})
frame.plot(kind="bar", x="x", y="y", title="pandas")
plt.show()
sns.set_theme()
sns.catplot(data=frame, x="x", y="y", kind="box")
plt.show()
sns.heatmap(frame[["y"]])
frame.hist()
plt.show()
print(plt.get_fignums(), sorted(os.listdir()))
