# differs: stdout: below the program there is one frame of the fork server
import inspect


def show():
    for frame in inspect.stack():
        print(frame.filename, frame.lineno, frame.function, frame.code_context)


show()
