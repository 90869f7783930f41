count: int = 1
name: "str"
print(__annotations__, globals()["__annotations__"] is __annotations__)
