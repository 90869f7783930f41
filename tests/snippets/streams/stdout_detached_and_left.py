import sys

kept = sys.stdout.detach()
kept.write(b"direct\n")
