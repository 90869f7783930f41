# %%
class Rich:
    def __repr__(self):
        return "a Rich"
    def _repr_html_(self):
        return "<b>rich</b>"
Rich()
# %%
class OnlyHtml:
    def _repr_html_(self):
        return "<b>html</b>"
OnlyHtml()
# %%
class Bad:
    def __repr__(self):
        raise ValueError("no text")
Bad()
# %%
[Bad()]
# %%
print("still here")
# %%
# differs: stderr: only the text is asked for, as computing all other forms takes longer than most cells
class BadHtml(Rich):
    def _repr_html_(self):
        raise ValueError("no html")
BadHtml()
# %%
class Pretty:
    def _repr_pretty_(self, printer, cycle):
        printer.text("pretty")
Pretty()
# %%
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "from a bundle", "text/html": "<i></i>"}
Bundle()
# %%
class Shown:
    def _ipython_display_(self):
        print("displays itself")
Shown()
# %%
class Wrong:
    def __repr__(self):
        return 5
Wrong()
# %%
cycle = [1]
cycle.append(cycle)
cycle
# %%
class Prints:
    def __repr__(self):
        print("while it is shown")
        return "Prints()"
Prints()
# %%
class Slow:
    def __repr__(self):
        import time
        time.sleep(0.05)
        return "slow"
[Slow()] * 2
# %%
list(range(2000))
