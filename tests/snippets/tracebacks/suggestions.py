import collections
import traceback

values = [1]
for wrong in (
    "valeus",
    "sys.argv",
    "collections.OrderedDcit",
    "values.apend(2)",
    "print(ends='')",
    "pintr('x')",
    "self.values",
):
    try:
        eval(wrong)
    except Exception:
        print(traceback.format_exc())
import colections
