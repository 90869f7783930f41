import io

import matplotlib.pyplot as plt
import networkx as nx
import pandas as pd

edges = pd.DataFrame({"from": ["a", "a", "b", "c"], "to": ["b", "c", "c", "d"], "weight": [1, 5, 2, 1]})
graph = nx.from_pandas_edgelist(edges, "from", "to", edge_attr="weight")
print(nx.shortest_path(graph, "a", "d", weight="weight"), {key: round(rank, 3) for key, rank in nx.pagerank(graph).items()})
nx.draw(graph, pos=nx.spring_layout(graph, seed=1), with_labels=True)
picture = io.BytesIO()
plt.savefig(picture, format="png")
plt.close()
print(len(picture.getvalue()) > 5000, [len(part) for part in nx.community.louvain_communities(graph, seed=1)])
