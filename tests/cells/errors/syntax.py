# %%
print("not run"
# %%
if True:
print(1)
# %%
x = = 1
# %%
  indented = 1
# %%
def f():
	a
        b
# %%
return 5
# %%
yield 5
# %%
"unfinished
# %%
break
# %%
f(x for x in y, 1)
# %%
print "python 2"
# %%
x = 08
# %%
nonlocal x
# %%
1 = x
# %%
for
# %%
exec("1 +")
# %%
eval("a b")
# %%
f"{1 +}"
# %%
compile("x = (", "given.py", "exec")
# %%
"x is still" , "x" in globals()
