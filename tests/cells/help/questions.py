# %%
def documented(x, y=2):
    """Adds two numbers.

    As one does."""
    return x + y
help(documented)
# %%
documented?
# %%
documented??
# %%
?documented
# %%
no_such_name?
# %%
len?
# %%
class Kind:
    "A kind."
    def __init__(self, a): self.a = a
Kind?
# %%
value = [1, 2]
value?
# %%
*sort*?
# %%
%pdoc documented
# %%
%pinfo documented
# %%
%pdef documented
# %%
%pfile documented
# %%
documented.__doc__
# %%
%time?
# %%
dir(Kind)[-3:]
# %%
value.sort?
