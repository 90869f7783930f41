import sys

code = sys._getframe().f_code
print(code.co_filename, code.co_name, code.co_qualname, code.co_firstlineno)
print(code.co_argcount, code.co_nlocals, code.co_freevars)
print((lambda: 0).__code__.co_filename, (lambda: 0).__module__, (lambda: 0).__qualname__)
