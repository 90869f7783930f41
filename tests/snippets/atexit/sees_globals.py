import atexit
import sys

value = [1]


def report():
    print(value, __name__, sys.modules["__main__"].value is value, sys.stdout.closed)
    with open("report.txt", "w") as file:
        file.write("written in atexit")


atexit.register(report)
value = [2]
