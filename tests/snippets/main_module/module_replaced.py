import sys
import types

sys.modules["__main__"] = types.ModuleType("__main__")
sys.modules["__main__"].kept = open("kept.txt", "w")
sys.modules["__main__"].kept.write("kept")
print("the end", __file__)
1 / 0
