import faulthandler
import sys
import tracemalloc

print(tracemalloc.is_tracing(), faulthandler.is_enabled(), sys.getswitchinterval(), sys.getrecursionlimit())
tracemalloc.start()
kept = [bytes(1000) for _ in range(100)]
print(tracemalloc.get_traced_memory()[0] > 100_000)
print(tracemalloc.take_snapshot().statistics("lineno")[0].traceback[0].lineno)
