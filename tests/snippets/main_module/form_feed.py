x = 1

print(x)
print(x)
