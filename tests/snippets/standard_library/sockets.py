import selectors
import socket
import threading

server = socket.create_server(("127.0.0.1", 0))


def serve():
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()


threading.Thread(target=serve).start()
with socket.create_connection(server.getsockname()) as client:
    client.sendall(b"through the loopback")
    print(client.recv(100), client.gettimeout(), client.get_inheritable())
one, other = socket.socketpair()
with selectors.DefaultSelector() as selector:
    selector.register(other, selectors.EVENT_READ)
    one.send(b"x")
    print(len(selector.select(1)), type(selector).__name__)
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print(error)
