import warnings

warnings.simplefilter("error")
try:
    warnings.warn("caught", RuntimeWarning)
except RuntimeWarning as error:
    print(repr(error))
warnings.warn("not caught")
