# differs: stderr: below the program there is one frame of the fork server
import warnings


def inner(level):
    warnings.warn(f"level {level}", UserWarning, stacklevel=level)


def outer(level):
    inner(level)


for level in range(1, 7):
    outer(level)
