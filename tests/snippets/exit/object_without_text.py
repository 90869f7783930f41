class Reason:
    def __str__(self):
        raise ValueError("no text")


raise SystemExit(Reason())
