# differs: stderr: below the program there is one frame of the fork server
def ping(n):
    return pong(n + 1)


def pong(n):
    return ping(n + 1)


try:
    ping(0)
except RecursionError as error:
    print(error)
ping(0)
