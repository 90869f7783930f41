# differs: stdout: what the libraries do at the end is done, and here meets what the program has broken or left on
import sys


def tracer(frame, event, argument):
    print(event, frame.f_code.co_name)


def work():
    return 1


sys.settrace(tracer)
work()
