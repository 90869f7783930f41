def load():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no such setting") from error


try:
    load()
except ValueError as error:
    print(repr(error.__cause__), repr(error.__context__), error.__suppress_context__)
    int("seven")
