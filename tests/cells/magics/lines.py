# %%
%time sum(range(10))
# %%
%%time
total = sum(range(10))
total
# %%
%timeit -n 1 -r 1 pass
# %%
result = %timeit -n 1 -r 1 -o pass
type(result).__name__
# %%
%%timeit -n 1 -r 1
pass
# %%
del result  # its time is cut at another place in each run
x, name, table = 1, "a", [1, 2]
%who
# %%
%whos
# %%
%who_ls int
# %%
%pwd
# %%
%mkdir folder
%cd folder
# %%
%cd ..
# %%
%cd -q folder
%pwd
# %%
%cd -q /mnt/data
%env MINE=value
# %%
%env MINE
# %%
%set_env OTHER=$name
# %%
%no_such_magic
# %%
%%no_such_cell_magic
x
# %%
%precision 3
3.14159265
# %%
%pprint
# %%
%xmode Minimal
# %%
1 / 0
# %%
%xmode Context
# %%
%lsmagic?
# %%
%alias greet echo hello %s
# %%
greet you
# %%
%config InlineBackend.figure_format = "retina"
# %%
%matplotlib inline
# %%
%store x
# %%
%automagic
# %%
%reset_selective -f table
# %%
table
# %%
%logstart
# %%
# differs: stdout: the debugger looks for a file in which a cell is
%debug
# %%
%prun -q sum(range(3))
# %%
%colors nocolor
# %%
%notebook out.ipynb
# %%
%cd no_such_folder
# %%
%xdel x
# %%
%psource len
