def outer():
    value = 1
    global value
