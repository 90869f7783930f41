import threading

threading.excepthook = lambda what: print(what.exc_type.__name__, what.thread.name)
thread = threading.Thread(target=lambda: 1 / 0, name="hooked")
thread.start()
thread.join()
