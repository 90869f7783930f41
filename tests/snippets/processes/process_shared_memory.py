from multiprocessing import get_context, shared_memory


def work(name):
    block = shared_memory.SharedMemory(name)
    block.buf[0] = 42
    block.close()


if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=16)
    process = get_context("fork").Process(target=work, args=(block.name,))
    process.start()
    process.join()
    print(block.buf[0], len(block.buf) >= 16)
    block.close()
    block.unlink()
