import resource
import time

used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime < 1, used.ru_stime < 1, used.ru_maxrss < 600_000, time.process_time() < 2, time.thread_time() < 2)
print(used.ru_nswap, used.ru_nsignals)
