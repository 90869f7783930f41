import warnings


def work(n):
    warnings.warn(f"number {n % 2}")


for n in range(5):
    work(n)
print(sorted(key for key in __warningregistry__ if key != "version"), "version" in __warningregistry__)
