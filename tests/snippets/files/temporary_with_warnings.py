import tempfile
import warnings

warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: print(category.__name__, str(message).split("<")[0])
folder = tempfile.TemporaryDirectory(dir=".")
