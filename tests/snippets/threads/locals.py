import threading


class Noisy:
    def __del__(self):
        print("del of", self.name)


local = threading.local()


def work(name):
    local.value = Noisy()
    local.value.name = name


thread = threading.Thread(target=work, args=("thread's",))
thread.start()
thread.join()
work("main's")
print("main ends", hasattr(local, "value"))
