import sys
import weakref

reference = weakref.ref(sys.modules["__main__"], lambda _: print("main is gone"))
print(reference() is sys.modules["__main__"])
