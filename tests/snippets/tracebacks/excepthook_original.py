import sys

print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
sys.excepthook = lambda *arguments: (print("mine"), sys.__excepthook__(*arguments))


def fail():
    raise KeyError("original")


fail()
