import sys

print(sys.gettrace(), sys.getprofile())
events = []


def tracer(frame, event, argument):
    events.append((frame.f_code.co_name, event, frame.f_lineno))
    return tracer


def work(n):
    total = 0
    for i in range(n):
        total += i
    return total


sys.settrace(tracer)
work(2)
sys.settrace(None)
print(events)
