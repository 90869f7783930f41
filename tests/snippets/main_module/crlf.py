text = """one
two"""
print(repr(text), open(__file__, "rb").read().count(b"\r\n"))
if True:
    print("a \
b")
