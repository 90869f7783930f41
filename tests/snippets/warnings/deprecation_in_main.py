import warnings


def old():
    warnings.warn("use new()", DeprecationWarning, stacklevel=2)


old()
warnings.warn("pending", PendingDeprecationWarning)
warnings.warn("here", DeprecationWarning)
import datetime

print(datetime.datetime.utcfromtimestamp(0))
