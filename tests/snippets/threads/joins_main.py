import threading


def work():
    threading.main_thread().join()
    print("main has ended")


threading.Thread(target=work).start()
