import sys

print("out")
sys.exit("the reason, on standard error")
