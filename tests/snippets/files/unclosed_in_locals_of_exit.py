import sys


def work():
    file = open("locals.txt", "w")
    file.write("held by a frame that exits")
    sys.exit(4)


work()
