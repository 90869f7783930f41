import sys

sys.unraisablehook = lambda what: print(what.exc_type.__name__, what.err_msg)


class Noisy:
    def __del__(self):
        1 / 0


Noisy()
kept = Noisy()
