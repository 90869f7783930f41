# differs: stdout: the interpreter is not taken apart: what a program does at its very end still works
import sys
import threading


class Late:
    def __del__(self):
        print(sys.is_finalizing(), len(sys.modules) > 10, sys.stdout is not None, sys.meta_path is None)
        try:
            threading.Thread(target=print, args=("x",)).start()
        except BaseException as error:
            print(type(error).__name__, error)


kept = Late()
