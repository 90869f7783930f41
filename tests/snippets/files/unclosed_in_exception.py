def work():
    file = open("exception.txt", "w")
    file.write("held by the traceback")
    raise ValueError("x")


work()
