import inspect

print(type(__loader__).__module__, type(__loader__).__name__, isinstance(__loader__, type))
print(__loader__.name, __loader__.path, __loader__.get_filename("__main__"))
print(__loader__.get_source("__main__") == open(__file__).read())
print(__loader__.get_data(__file__)[:6], __loader__.is_package("__main__"))
print(repr(inspect.getmodule(inspect.currentframe())))
