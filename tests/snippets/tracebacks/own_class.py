class Base(BaseException):
    pass


class Nested:
    class Deep(Base):
        def __str__(self):
            return "two\nlines"


raise Nested.Deep
