import multiprocessing
from multiprocessing.connection import Client, Listener


def work(address):
    with Client(address, authkey=multiprocessing.current_process().authkey) as connection:
        connection.send("authenticated")


with Listener("socket", authkey=multiprocessing.current_process().authkey) as listener:
    process = multiprocessing.get_context("fork").Process(target=work, args=("socket",))
    process.start()
    with listener.accept() as connection:
        print(connection.recv())
    process.join()
