# differs: stdout: below the program there is one frame of the fork server
import sys


def depth():
    frame, depth = sys._getframe(), 0
    while frame.f_back:
        frame, depth = frame.f_back, depth + 1
    return depth, frame.f_code.co_name, frame.f_code.co_filename


print(depth())
print(sys._getframe().f_back, sys._current_frames().keys() == {__import__("_thread").get_ident()})
try:
    sys._getframe(1)
except ValueError as error:
    print(error)
