import warnings

warnings.simplefilter("once")
for _ in range(3):
    warnings.warn("the same everywhere")
warnings.warn("the same everywhere")
warnings.simplefilter("always")
for _ in range(2):
    warnings.warn("each time")
warnings.resetwarnings()
warnings.warn("after the reset")
print(len(warnings.onceregistry), len(warnings.filters))
