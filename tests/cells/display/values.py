# %%
1 + 1
# %%
x = 5
# %%
x;
# %%
None
# %%
print("first")
x, [x] * 3
# %%
"text with 'quotes' and\nlines"
# %%
{"b": 1, "a": {2, 1}, "long": list(range(60))}
# %%
x = 1  # a comment; with a semicolon
x  # no; this is shown
# %%
x; x + 1
# %%
if x:
    "not the last expression"
# %%
("a call that returns None", print("printed"))[0]
# %%
# only a comment
# %%
'''a string
that is all of the cell'''
# %%
x == 1 and print("nothing is shown")
# %%
f = lambda: 3
f
# %%
type(x), int, print
