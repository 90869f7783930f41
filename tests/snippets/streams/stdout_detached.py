import io
import sys

raw = sys.stdout.detach()
sys.stdout = io.TextIOWrapper(raw, encoding="utf-16")
print("two bytes each")
