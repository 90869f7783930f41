loop = []
loop.append(loop)
print(loop)


class Endless:
    def __repr__(self):
        return f"<{self!r}>"


try:
    repr(Endless())
except RecursionError as error:
    print(type(error).__name__)
