with open(__file__, "w") as file:
    file.write("one\ntwo\nthree\nfour\nfive\n")


def fail():
    raise ValueError("shown with the lines that are there now")


fail()
