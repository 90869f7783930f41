import sys


def hook(kind, value, trace):
    depth = 0
    while trace:
        print(trace.tb_frame.f_code.co_name, trace.tb_lineno)
        trace = trace.tb_next
        depth += 1
    print("hook", kind.__name__, value, depth)


def fail():
    raise KeyError("x")


sys.excepthook = hook
fail()
