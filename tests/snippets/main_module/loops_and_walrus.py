if (n := 3) > 2:
    print([last := x for x in range(n)], last)
match {"kind": "point", "at": (1, 2)}:
    case {"kind": "point", "at": (x, y)}:
        print(x, y)
try:
    raise ValueError
except ValueError as error:
    pass
print("error" in globals())
