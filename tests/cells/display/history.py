# %%
40 + 2
# %%
_ + 1
# %%
_, __, _1, _2
# %%
Out
# %%
len(In), In[1], _i, _ii, _i2
# %%
_ = "mine"
# %%
7
# %%
_, __
# %%
Out[1], _7, sorted(Out)
# %%
5;
# %%
9 in Out, 10 in Out, _
# %%
%history -n
# %%
%history 1-3
# %%
%rerun 1
# %%
%recall 1
# %%
get_ipython().execution_count
# %%
_oh is Out, _ih is In, _dh
# %%
%reset -f out
# %%
Out
# %%
%reset -f
# %%
"x" in globals(), sorted(name for name in globals() if not name.startswith("_"))
