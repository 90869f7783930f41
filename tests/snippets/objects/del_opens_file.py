# differs: stdout: the interpreter is not taken apart: what a program does at its very end still works
# differs: files: the interpreter is not taken apart: what a program does at its very end still works
class Late:
    def __del__(self):
        try:
            with open("late.txt", "w") as file:
                file.write("written at the end")
        except BaseException as error:
            print(type(error).__name__, error)


kept = Late()
