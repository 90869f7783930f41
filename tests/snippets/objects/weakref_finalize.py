import weakref


class Thing:
    pass


kept = Thing()
first = weakref.finalize(kept, print, "finalized first registered")
second = weakref.finalize(kept, print, "finalized second registered")
silent = weakref.finalize(kept, print, "never")
silent.atexit = False
early = Thing()
weakref.finalize(early, print, "finalized early")
del early
print("main ends", first.alive)
