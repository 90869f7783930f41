# given: tool.py
#| import sys
#| print(__name__, __file__, sys.argv)
import runpy
import sys

print(sorted(runpy.run_module("tool", run_name="__main__", alter_sys=True))[:3])
if not hasattr(sys, "ran"):
    sys.ran = True
    result = runpy.run_path(__file__, run_name="again")
    print(result["__name__"], result["__file__"])
print(__name__, sys.argv)
