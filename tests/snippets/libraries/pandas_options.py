import pandas as pd

for name in "display.max_rows", "display.width", "display.max_columns", "display.precision", "mode.copy_on_write", "future.infer_string", "plotting.backend":
    try:
        print(name, pd.get_option(name))
    except Exception as error:
        print(name, type(error).__name__)
print(pd.DataFrame({f"a long column name {n}": range(100) for n in range(12)}))
pd.set_option("display.max_rows", 4)
print(pd.Series(range(100)))
with pd.option_context("display.precision", 2):
    print(pd.Series([3.14159]))
