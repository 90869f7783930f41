# %%
import warnings
warnings.warn("first")
# %%
def old():
    warnings.warn("old", DeprecationWarning)
for _ in range(3): old()
# %%
for _ in range(3): warnings.warn("three times")
# %%
warnings.simplefilter("ignore")
warnings.warn("unheard")
# %%
warnings.warn("unheard still")
# %%
warnings.simplefilter("error")
warnings.warn("an error")
# %%
warnings.resetwarnings(); warnings.simplefilter("default")
with warnings.catch_warnings(record=True) as caught:
    warnings.warn("caught")
len(caught), str(caught[0].message)
# %%
import logging
logging.warning("by default")
# %%
logging.info("unheard")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", force=True)
logging.info("heard")
# %%
log = logging.getLogger("mine")
handler = logging.StreamHandler()
log.addHandler(handler); log.propagate = False
log.error("once")
# %%
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
# %%
"a" is "a"
# %%
# differs: stderr: a notebook looks twice whether a cell waits for something, and warns each time
"\d"
# %%
import numpy as np
np.array([1.0]) / 0
# %%
assert (1, "always true")
