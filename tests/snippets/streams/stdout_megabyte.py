line = "0123456789" * 10
for number in range(10_000):
    print(number, line)
