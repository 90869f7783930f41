import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.tsa.arima.model import ARIMA

random = np.random.default_rng(0)
frame = pd.DataFrame({"x": np.arange(50.0), "group": list("ab") * 25})
frame["y"] = 2 * frame.x + 1 + random.normal(size=50)
fitted = smf.ols("y ~ x + C(group)", frame).fit()
print([line for line in str(fitted.summary()).splitlines() if "R-squared" in line], fitted.params.round(4).to_dict())
print(sm.OLS(frame.y, sm.add_constant(frame.x)).fit().pvalues.lt(0.05).to_dict())
print(ARIMA(frame.y.to_numpy(), order=(1, 1, 0)).fit().forecast(2).round(1))
