def work(value):
    breakpoint()
    return value + 1


print(work(1))
