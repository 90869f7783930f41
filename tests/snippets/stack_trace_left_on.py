import sys


def tracer(frame, event, argument):
    print(event, frame.f_code.co_name)


def work():
    return 1


sys.settrace(tracer)
work()
