"""Progress bars for notebooks, as text: there are no widgets here. Takes the place of `tqdm.notebook`."""

from .std import tqdm, trange

__all__ = ["tqdm", "tqdm_notebook", "tnrange", "trange"]


class tqdm_notebook(tqdm):
    """A bar in text, which takes the arguments of one that is a widget."""

    def __init__(self, *args, display=True, **kwargs):
        super().__init__(*args, **kwargs)


def tnrange(*args, **kwargs):
    """A bar over `range`."""
    return tqdm_notebook(range(*args), **kwargs)


tqdm, trange = tqdm_notebook, tnrange
