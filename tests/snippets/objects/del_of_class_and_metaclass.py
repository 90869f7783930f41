class Meta(type):
    def __del__(cls):
        print("del of class", cls.__name__)


class Made(metaclass=Meta):
    pass


print("main ends")
