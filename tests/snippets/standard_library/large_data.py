values = list(range(1_000_000))
table = {n: str(n) for n in range(200_000)}
print(sum(values), len(table), table[199_999])
