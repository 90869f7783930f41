print("never printed")
total = (1 + 2
next_line = 3
