# differs: stdout: the interpreter is not taken apart: what a program does at its very end still works
class Late:
    def __del__(self):
        try:
            import colorsys

            print("imported", colorsys.__name__)
        except BaseException as error:
            print(type(error).__name__, error)


kept = Late()
