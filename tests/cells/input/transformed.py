# %%
texts = r'''
x = 1
----
print(2 + 2)
----
    indented = 1
    more = 2
----

after_an_empty_line = 1
----
ls
----
ls = 3
----
cd /tmp
----
time.time()
----
exit
----
quit()
----
a?
----
?a
----
a.b??
----
5 % 3
----
x != 1
----
"what?"
----
%matplotlib inline
----
files = !ls
----
!ls {x}
----
%%time
x = 1
----
>>> a = 1
>>> a
1
----
In [1]: a = 1
   ...: b = 2
----
,print a b
----
;print a b
----
/print a
----
print a
----
f = [
    1
    , 2
]
f
----
for i in range(3):
    print(i)

    /print i
----
text = """
%not a magic
!nor a command
?
"""
----
def f():
    return 1
f()
----
time
----
x
y
----
await asyncio.sleep(0)
----
x;
----
# a comment
----
get_ipython
----
pprint = 1
----
who
----
print (1)
----
ls -l
----
ls - l
----
object ?
----
é = 1
----
a = 1; b = %time 3
----
a\
 = 1
'''.strip("\n").split("\n----\n")
shell = get_ipython()
for text in texts:
    print(repr(shell.transform_cell(text)), repr(shell.transform_cell(text + "\n\n")))
# %%
[shell.should_run_async(text, transformed_cell=text) for text in (
    "x = 1", "await x", "async def f(): pass", "async with x: pass", "[await a for a in b]", "# await", "x = (")]
# %%
ls = 3
shell.transform_cell("ls"), shell.transform_cell("ls + 1")
# %%
del ls
%autocall 1
# %%
shell.transform_cell("print 1"), shell.transform_cell("x")
# %%
%autocall 0
# %%
shell.input_transformers_cleanup.append(lambda lines: [line.replace("THREE", "3") for line in lines])
# %%
THREE + 1
# %%
shell.input_transformers_cleanup.pop();
# %%
shell.input_transformers_post.append(lambda lines: [line.replace("FOUR", "4") for line in lines])
# %%
FOUR + 1
# %%
shell.input_transformers_post.pop();
# %%
%macro -q again 3
# %%
again
# %%
_i, _ii, _iii, len(In)
