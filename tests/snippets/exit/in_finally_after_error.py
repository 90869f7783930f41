import sys

try:
    1 / 0
finally:
    sys.exit(11)
