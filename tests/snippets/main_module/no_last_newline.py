if True:
    print("last")
    1 / 0