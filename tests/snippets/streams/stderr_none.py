import sys

sys.stderr = None
raise SystemExit("reason that nobody sees")
