import resource
import signal

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with open("large", "wb") as file:
        file.write(b"x" * 2000)
except OSError as error:
    print(error)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
with open("larger", "wb") as file:
    file.write(b"x" * 2000)
