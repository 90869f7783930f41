# %%
import numpy as np
np.arange(12).reshape(3, 4)
# %%
np.linspace(0, 1, 5), np.float64(1.5), np.bool_(True)
# %%
np.arange(3000)
# %%
np.set_printoptions(precision=2, suppress=True)
np.array([1 / 3, 1e-9])
# %%
np.array([2 / 3])
# %%
np.random.seed(1); np.random.rand(2)
# %%
np.random.rand()
# %%
rng = np.random.default_rng(5); rng.integers(10, size=4)
# %%
rng.normal()
# %%
import random
random.seed(3); random.random()
# %%
random.random(), random.choice("abcdef")
# %%
np.ones((2, 2)) @ np.ones((3, 3))
# %%
np.array([(1, "a")], dtype=[("n", int), ("s", "U1")])
# %%
with np.errstate(all="raise"):
    np.float64(1) / 0
# %%
import sympy
sympy.Symbol("x") ** 2 + sympy.Rational(1, 2)
# %%
from sklearn.linear_model import LinearRegression
LinearRegression().fit([[0], [1]], [0, 1])
# %%
import polars as pl
pl.DataFrame({"a": [1, 2]})
