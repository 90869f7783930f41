import os

null = os.open("/dev/null", os.O_RDWR)
for number in range(3, 256):
    os.dup2(null, number)
print("goes on")
raise SystemExit(14)
