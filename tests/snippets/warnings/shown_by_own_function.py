import warnings

warnings.formatwarning = lambda message, category, *_: f"<{category.__name__}: {message}>\n"
warnings.warn("formatted")
warnings.showwarning = lambda message, category, filename, lineno, *_: print(message, filename, lineno)
warnings.warn("shown")
warnings.warn_explicit("explicit", UserWarning, "other.py", 7)
