import multiprocessing
import subprocess
import sys


def work(connection):
    connection.send((tuple(sys.flags), sys.path, sys.dont_write_bytecode))


if __name__ == "__main__":
    print(subprocess._args_from_interpreter_flags())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    flags, path, bytecode = ours.recv()
    process.join()
    print(flags == tuple(sys.flags), path == sys.path, bytecode)
