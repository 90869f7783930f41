import sys
import traceback


def show():
    traceback.print_stack(file=sys.stdout)


show()
