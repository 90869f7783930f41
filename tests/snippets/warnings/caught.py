import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("one")
    warnings.warn("two", FutureWarning)
print([(str(w.message), w.category.__name__, w.filename, w.lineno) for w in caught])
with warnings.catch_warnings(action="ignore"):
    warnings.warn("ignored")
warnings.warn("shown")
