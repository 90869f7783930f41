# differs: stdout: what the libraries do at the end is done, and here meets what the program has broken or left on
import sys


def profiler(frame, event, argument):
    sys.__stdout__.write(f"{event} {frame.f_code.co_name}\n")


def work():
    return 1


sys.setprofile(profiler)
work()
