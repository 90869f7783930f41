class Odd(SystemExit):
    @property
    def code(self):
        raise ValueError("no code")


raise Odd(3)
