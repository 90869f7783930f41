import sys

print([getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path])
print([getattr(hook, "__qualname__", type(hook).__name__) for hook in sys.path_hooks])
