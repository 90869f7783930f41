import _interpreters

interpreter = _interpreters.create()
_interpreters.run_string(interpreter, "import atexit; atexit.register(print, 'atexit of the other one')")
print("main ends")
