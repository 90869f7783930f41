import pandas as pd

frame = pd.DataFrame({"x": range(5), "y": [n * n for n in range(5)]})
axes = frame.plot(x="x", y="y", kind="bar", title="Squares")
axes.figure.savefig("bar.png")
print(type(axes).__name__, len(axes.patches))
