words = "the quick brown fox jumps over the lazy dog".split()
print(sorted(set(words)), sorted(words, key=len), max(words), len({*words}))
print(hash(()) == hash(()), {1, 2, 3}, frozenset([3, 1]), {"a": 1} | {"b": 2})
