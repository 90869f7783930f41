import numpy as np
from scipy import optimize, stats

sample = np.array([2.1, 2.5, 1.9, 2.8, 2.2])
print(stats.ttest_1samp(sample, 2.0), stats.norm.cdf(1.96).round(6), stats.pearsonr(sample, sample[::-1]).statistic.round(6))
print(optimize.minimize_scalar(lambda x: (x - 2) ** 2).x.round(5), optimize.brentq(np.cos, 1, 2))
print(stats.linregress(range(5), sample))
