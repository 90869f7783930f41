import resource

resource.setrlimit(resource.RLIMIT_CPU, (1, 5))
while True:
    pass
