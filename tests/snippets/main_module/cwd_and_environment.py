import os

print(os.getcwd(), os.path.realpath("."))
for name in sorted(os.environ):
    print(name, "=", os.environ[name])
