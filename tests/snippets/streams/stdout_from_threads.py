import threading

lock = threading.Lock()
turn = threading.Condition(lock)
order = []


def work(number):
    with turn:
        turn.wait_for(lambda: len(order) == number)
        order.append(number)
        print("thread", number)
        turn.notify_all()


threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(5))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
