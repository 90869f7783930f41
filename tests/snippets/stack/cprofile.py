import cProfile
import io
import pstats


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


profile = cProfile.Profile()
profile.runcall(fib, 10)
stats = pstats.Stats(profile, stream=io.StringIO())
print(sorted((key[2], value[0], value[1]) for key, value in stats.stats.items()))
