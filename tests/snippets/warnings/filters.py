import warnings

for filter in warnings.filters:
    print(filter)
print(warnings.defaultaction, warnings.onceregistry, warnings._showwarning_orig is warnings.showwarning)
