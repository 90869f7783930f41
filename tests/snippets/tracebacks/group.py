def part(number):
    try:
        raise TypeError(f"part {number}")
    except TypeError as error:
        error.add_note(f"note of {number}")
        return error


try:
    raise ExceptionGroup("inner", [part(1), part(2)])
except ExceptionGroup as inner:
    nested = inner
try:
    raise ExceptionGroup("outer", [part(3), nested, OSError(2, "gone", "file.csv")])
except* OSError as group:
    print("caught", group.exceptions)
