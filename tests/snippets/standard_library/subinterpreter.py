import _interpreters

interpreter = _interpreters.create()
print(_interpreters.run_string(interpreter, "print('in the other one', __name__)"))
_interpreters.destroy(interpreter)
