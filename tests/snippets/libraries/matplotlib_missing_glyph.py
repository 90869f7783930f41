import logging
import warnings

import matplotlib.pyplot as plt

plt.title("private \ue000 use")
with warnings.catch_warnings(record=True) as caught:
    plt.savefig("title.png")
for warning in caught:
    # Named in the order of their addresses.
    text, fonts = str(warning.message).rstrip(".").split("font(s) ")
    print(text, sorted(fonts.split(", ")), warning.filename, warning.lineno)
plt.rcParams["font.family"] = "No Such Font"
plt.figure()
plt.title("fallback")
plt.savefig("fallback.png")
print(logging.getLogger("matplotlib").level, logging.getLogger("matplotlib").handlers)
