import sys


class Exits:
    def __del__(self):
        sys.exit(13)


Exits()
print("goes on")
kept = Exits()
