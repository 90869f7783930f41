import sys

sys.exit("half a pair \ud800")
