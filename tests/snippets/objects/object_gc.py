import gc
import sys
import weakref

print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
print(all(count >= 0 for count in gc.get_count()), gc.get_count()[0] <= 2000)


class Node:
    pass


node = Node()
node.itself = node
reference = weakref.ref(node)
del node
gc.collect()
print(reference() is None, gc.collect(), sys.getrefcount(object()))
gc.set_threshold(100, 5, 5)
gc.disable()
print(gc.isenabled(), gc.get_threshold())
