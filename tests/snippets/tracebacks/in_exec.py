code = "def f():\n    return undefined_name\n\nf()"
try:
    exec(code)
except NameError:
    import traceback

    traceback.print_exc()
exec(compile(code, "generated.py", "exec"), {})
