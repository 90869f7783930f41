"""What stands in for a screen: a figure that is shown becomes a file in /mnt/data.

Nobody sees a window here, and `plt.show()` would do nothing. The build makes matplotlib and plotly call this
module instead (see the Dockerfile):

    plt.show(), figure.show()    of matplotlib's agg    figure_N.png, and the figure is closed, as in a notebook
    figure.savefig()             remembers what has been saved, so that it is not saved again
    figure.show()                of plotly              figure_N.html, which holds all that a browser needs
    table.style                  of pandas              its text, where a notebook shows HTML

N is the next number for which there is no file. Imports neither library by itself.
"""

import contextlib
import io
import itertools
import os
import sys
import weakref

DATA = "/mnt/data"

# What each figure held when it was last saved to a file in DATA, and when it was last saved at all. A figure
# that has been cleared and drawn anew, or drawn on, holds something else.
_kept = weakref.WeakKeyDictionary()
_used = weakref.WeakKeyDictionary()

# The figure that was shown last: with windows, what is saved right after that is still this one.
_shown = None

# The number to be tried first, for each kind of file.
_next = {}


def saved(figure, target, options):
    """A figure of matplotlib's has been saved to what `savefig` was given."""
    if _shown is not None and figure is not _shown and len(figure.get_children()) <= 1:
        # plt.show(); plt.savefig(..): the figure that was shown has gone, and this is a new one without anything.
        _shown.canvas.print_figure(target, **options)
        figure = _shown
    try:
        _used[figure] = weakref.WeakSet(_parts(figure))
        if _is_kept(target):
            _kept[figure] = _used[figure]
    except Exception:
        pass  # it is saved, whatever it was


def unseen():
    """How many figures of pyplot's are open, show something, and have neither been saved nor shown."""
    try:
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        managers = helpers.Gcf.get_all_fig_managers() if helpers else ()
        return sum(_is_new(manager.canvas.figure, _used) for manager in managers)
    except Exception:
        return 0


def show(*, block=None):
    """Takes the place of `matplotlib.pyplot.show`."""
    from matplotlib._pylab_helpers import Gcf

    for manager in sorted(Gcf.get_all_fig_managers(), key=lambda manager: manager.num):
        manager.show()


def display(figure):
    """A figure is the value of a cell, or displayed by it: it is saved, whether it has been shown before or not."""
    from matplotlib._pylab_helpers import Gcf

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi="figure")
    _write(picture.getbuffer(), "png")
    if figure in _used:
        _kept[figure] = _used[figure]
    manager = figure.canvas.manager
    if manager is not None and Gcf.figs.get(manager.num) is manager:
        del Gcf.figs[manager.num]


def manager_class(base):
    """A class of matplotlib's for the windows of figures, without windows."""

    class FigureManager(base):
        def show(self):
            global _shown
            from matplotlib._pylab_helpers import Gcf

            figure = _shown = self.canvas.figure
            if _is_new(figure, _kept):
                picture = io.BytesIO()
                figure.savefig(picture, format="png", dpi="figure")
                _write(picture.getbuffer(), "png")
                _kept[figure] = _used[figure]
            # Not destroyed: it may be shown again, or drawn on and saved.
            if Gcf.figs.get(self.num) is self:
                del Gcf.figs[self.num]

    return FigureManager


def renderer(base):
    """One of plotly's renderers, in place of the one that opens a browser."""

    class FileRenderer(base):
        def render(self, fig_dict):
            from plotly.io import to_html

            _write(to_html(fig_dict, validate=False).encode(), "html")

    return FileRenderer()


@contextlib.contextmanager
def as_in_script():
    """For libraries that look, while they load, whether somebody watches: what has no file is a prompt to them."""
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = ""
    try:
        yield
    finally:
        del main.__file__


def text_of(styler):
    """The text of a table of pandas' whose look was set, with what its cells show: its `repr`."""
    try:
        # A character that no text has between cells.
        lines = styler.to_string(delimiter="\x1f", max_rows=60, max_columns=40).splitlines()
        rows = [line.split("\x1f") for line in lines]
        widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)
    except Exception:
        return object.__repr__(styler)


def _parts(figure):
    """All that a figure shows, but not deeper than what is in its axes."""
    return [*figure.get_children(), *(part for axes in figure.axes for part in axes.get_children())]


def _is_new(figure, saved):
    """True if a figure shows something that it did not when it was saved, if it was."""
    if len(figure.get_children()) <= 1:
        return False  # nothing but its background
    known = saved.get(figure, ())
    return any(part not in known for part in _parts(figure))


def _is_kept(target):
    """True if what `savefig` was given is a file in DATA, or of a kind that we do not know."""
    if isinstance(target, io.BytesIO):
        return False
    path = getattr(target, "name", target)
    if not isinstance(path, (str, bytes, os.PathLike)):
        return True
    return os.path.realpath(os.fsdecode(path)).startswith(DATA + "/")


def _write(content, suffix):
    """Writes a new file."""
    for number in itertools.count(_next.get(suffix, 1)):
        path = f"{DATA}/figure_{number}.{suffix}"
        try:
            file = open(path, "xb")
            break
        except FileExistsError:
            pass
    try:
        with file:
            file.write(content)
    except BaseException:
        os.unlink(path)  # half a picture is none
        raise
    _next[suffix] = number + 1
