# differs: stdout: the interpreter is not taken apart: what a program does at its very end still works
import _interpreters

interpreter = _interpreters.create()
_interpreters.run_string(interpreter, "import atexit; atexit.register(print, 'atexit of the other one')")
print("main ends")
