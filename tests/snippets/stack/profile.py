import sys

events = []


def profiler(frame, event, argument):
    events.append((event, frame.f_code.co_name, getattr(argument, "__name__", argument)))


def work():
    return len([1, 2])


sys.setprofile(profiler)
work()
sys.setprofile(None)
print(events)
