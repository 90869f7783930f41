class Reason:
    def __str__(self):
        return "text of the object"


raise SystemExit(Reason())
