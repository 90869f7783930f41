def fail():
    raise ValueError("x")


show = print
globals().clear()
print("still there")
