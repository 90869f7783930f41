import datetime

import matplotlib.pyplot as plt
import matplotlib.units

print(sorted(f"{kind.__module__}.{kind.__name__} {type(converter).__module__}" for kind, converter in matplotlib.units.registry.items()))
days = [datetime.datetime(2026, month, 1) for month in range(1, 7)]
plt.plot(days, range(6))
print(type(plt.gca().xaxis.get_major_locator()).__module__, type(plt.gca().xaxis.get_major_formatter()).__module__)
plt.savefig("days.png")
