import multiprocessing


def work(counter, times):
    for _ in range(times):
        with counter.get_lock():
            counter.value += 1


context = multiprocessing.get_context("fork")
counter = context.Value("i", 0)
processes = [context.Process(target=work, args=(counter, 100)) for _ in range(3)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print(counter.value, [process.exitcode for process in processes])
