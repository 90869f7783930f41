# differs: files: each picture names its place in the page at random
import os

import plotly.graph_objects as go

open("figure_1.html", "w").close()
figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))
figure.show()
figure.show(renderer="browser")
print(sorted(os.listdir()), os.path.getsize("figure_1.html"), os.path.getsize("figure_3.html") > 1_000_000)
