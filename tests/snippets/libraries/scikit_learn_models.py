import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

x = np.arange(20).reshape(-1, 1)
model = LinearRegression().fit(x, 3 * x.ravel() + 2)
print(model.coef_.round(6), round(float(model.intercept_), 6), r2_score(3 * x.ravel() + 2, model.predict(x)))
data = load_iris(as_frame=True)
train, test, names, wanted = train_test_split(data.data, data.target, random_state=0)
forest = RandomForestClassifier(n_estimators=20, random_state=0, n_jobs=2).fit(train, names)
print(round(accuracy_score(wanted, forest.predict(test)), 3), cross_val_score(forest, train, names, cv=3).shape)
clusters = make_pipeline(StandardScaler(), KMeans(3, n_init=2, random_state=0)).fit_predict(data.data)
print(pd.Series(clusters).nunique())
