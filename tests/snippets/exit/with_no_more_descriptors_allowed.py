import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
print("still fine")
