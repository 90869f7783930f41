print("half a pair: \udcff")
print(ascii("\udcff"))
print("the other half: \ud83d")
