def inner(divisor):
    return 1 / divisor


def middle(values):
    return [inner(value) for value in values]


class Outer:
    def method(self):
        return (lambda: middle([1, 0]))()


print("before")
Outer().method()
print("never")
