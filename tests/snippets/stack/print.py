# differs: stdout: below the program there is one frame of the fork server
import sys
import traceback


def show():
    traceback.print_stack(file=sys.stdout)


show()
