import multiprocessing


def work(connection):
    connection.send(("from", __name__))
    connection.close()


if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    print(ours.recv())
    process.join()
    print(process.exitcode)
