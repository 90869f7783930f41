# %%
display(1, "two", [3])
# %%
print("before"); display({"a": 1}); print("after")
"last"
# %%
from IPython.display import display as shown, Markdown, HTML, JSON, Math
shown(5)
# %%
# differs: stdout: a model can read the text; a notebook shows it, and has only the name of its class as text
display(Markdown("# A title"))
# %%
# differs: result: a model can read the text; a notebook shows it, and has only the name of its class as text
HTML("<b>bold</b>")
# %%
handle = display("one", display_id=True)
handle.update("two")
# %%
display()
# %%
from IPython.display import clear_output
print("kept"); clear_output()
# %%
import pprint
pprint.pprint({"key": list(range(40))})
# %%
display({"text/plain": "given", "text/html": "<p>given</p>"}, raw=True)
# %%
for number in range(3):
    display(number) if number % 2 else print(number)
