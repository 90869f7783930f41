import threading
import time


def work():
    time.sleep(0.1)
    print("after the end of main", threading.main_thread().is_alive())
    with open("late.txt", "w") as file:
        file.write("late")


threading.Thread(target=work).start()
print("main ends")
