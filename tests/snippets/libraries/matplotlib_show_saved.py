import io
import os
import tempfile

import matplotlib.pyplot as plt
from matplotlib.backends.backend_pdf import PdfPages


def shows(what):
    before = len(os.listdir())
    plt.show()
    print(what, len(os.listdir()) - before, plt.get_fignums())


for name in "chart.png", "chart.svg", "chart":
    plt.plot([1, 2])
    plt.savefig(name, metadata={"Date": None} if name.endswith("svg") else None)
    shows(name)
plt.plot([1, 2])
with open("file.png", "wb") as file:
    plt.savefig(file)
shows("to a file object")
plt.plot([1, 2])
with PdfPages("pages.pdf", metadata={"CreationDate": None}) as pages:
    pages.savefig()
shows("to pages")
plt.plot([1, 2])
plt.savefig(io.BytesIO())
shows("to memory: seen by nobody")
plt.plot([1, 2])
plt.savefig(os.path.join(tempfile.gettempdir(), "x.png"))
shows("elsewhere: seen by nobody")
plt.plot([1, 2])
plt.savefig("first.png")
plt.clf()
plt.plot([2, 1])
shows("cleared and drawn anew")
plt.plot([1, 2])
plt.savefig("second.png")
plt.plot([2, 1])
shows("drawn on")
try:
    plt.savefig("no/such/folder.png")
except FileNotFoundError as error:
    print(error)
plt.plot([1, 2])
shows("after a failure to save")
os.remove("chart.svg")
