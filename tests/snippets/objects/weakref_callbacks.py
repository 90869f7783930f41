import weakref


class Thing:
    pass


kept = Thing()
reference = weakref.ref(kept, lambda _: print("gone"))
table = weakref.WeakValueDictionary(kept=kept)
dropped = Thing()
other = weakref.ref(dropped, lambda _: print("dropped"))
del dropped
print("main ends", len(table))
