"""Takes the place of a screen: a figure that is shown becomes a file in /mnt/data.

There are no windows here, and `plt.show()` would do nothing. The build makes matplotlib and plotly call this module
instead (see the Dockerfile):

    plt.show(), figure.show()    of matplotlib's agg    figure_N.png, and the figure is closed, as in a notebook
    figure.savefig()             remembers what has been saved, so that it is not saved again
    figure.show()                of plotly              figure_N.html, which holds all that a browser needs, and a line
                                                        that describes it
    table.style                  of pandas              its text, where a notebook shows HTML

N is the next number for which there is no file. This module imports neither library by itself.
"""

import contextlib
import io
import itertools
import os
import sys
import weakref

DATA = "/mnt/data"

# Traces of a figure of plotly that are described, characters of a title, and the lists of a trace that can have a value for
# each of its points.
MAX_TRACES, MAX_TITLE = 5, 40
VALUES = "x", "y", "z", "values", "labels", "lat", "locations", "r", "theta", "open"

# The parts of each figure when it was last saved to a file in DATA, and when it was last saved at all. A figure that
# has been cleared and drawn anew, or drawn on, has other parts.
_kept = weakref.WeakKeyDictionary()
_used = weakref.WeakKeyDictionary()

# The figure that was shown last: with windows, a figure that is saved right after that is still this one.
_shown = None

# The first number to be tried, for each kind of file.
_next = {}


def saved(figure, target, options):
    """Notes that a figure of matplotlib has been saved, with the arguments of `savefig`."""
    if _shown is not None and figure is not _shown and len(figure.get_children()) <= 1:
        # plt.show(); plt.savefig(..): the figure that was shown is no longer the current one, and this is a new, empty
        # one.
        _shown.canvas.print_figure(target, **options)
        figure = _shown
    try:
        _used[figure] = weakref.WeakSet(_parts(figure))
        if _is_kept(target):
            _kept[figure] = _used[figure]
    except Exception:
        pass  # the figure is saved, whatever the target was


def unseen():
    """Returns how many figures of pyplot are open, show something, and have neither been saved nor shown."""
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
    """Saves a figure that is the value of a cell or is displayed by it, whether it has been shown before or not."""
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
    """Returns a class that replaces matplotlib's for the windows of figures, without windows."""

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
    """Returns a renderer of plotly that replaces the one that opens a browser."""

    class FileRenderer(base):
        def render(self, fig_dict):
            from plotly.io import to_html

            name = _write(to_html(fig_dict, validate=False).encode(), "html")
            # A model sees no page: it reads what the figure has.
            print(f"{name}: {text_of_plotly(fig_dict)}")

    return FileRenderer()


def text_of_plotly(figure):
    """Returns what a figure of plotly, as a dictionary, shows: its titles, and each trace with its number of points."""
    try:
        layout, traces = figure.get("layout") or {}, figure.get("data") or ()
        parts = [_title(layout, "")]
        parts += [_title(layout.get(axis) or {}, axis[0] + ": ") for axis in ("xaxis", "yaxis")]
        for trace in traces[:MAX_TRACES]:
            name = str(trace.get("name") or "")[:MAX_TITLE]
            points = _points(trace)
            parts.append(" ".join(filter(None, (trace.get("type", "scatter"), name, f"({points} points)"))))
        if len(traces) > MAX_TRACES:
            parts.append(f"{len(traces) - MAX_TRACES} more traces")
        return "; ".join(filter(None, parts))
    except Exception:
        return "a figure of plotly"


def _title(part, before):
    """Returns the title of a figure or an axis, or nothing."""
    title = part.get("title")
    title = title.get("text") if isinstance(title, dict) else title
    return before + " ".join(str(title).split())[:MAX_TITLE] if title else ""


def _points(trace):
    """Returns the number of points of a trace: that of its longest list."""
    return max((_len(trace[key]) for key in VALUES if trace.get(key) is not None), default=0)


def _len(values):
    """Returns the length of a list, which may be packed."""
    if isinstance(values, dict):
        packed = values["bdata"]
        return (len(packed) * 3 // 4 - packed.count("=")) // int(values["dtype"].lstrip("fiuc"))
    return len(values)


@contextlib.contextmanager
def as_in_script():
    """For libraries that check, while they load, whether they run at a prompt: a main module without a file means
    that."""
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
    """Returns the text of a styled table of pandas, with what its cells show. It is the `repr` of such tables."""
    try:
        # The delimiter is a character that occurs in no text.
        lines = styler.to_string(delimiter="\x1f", max_rows=60, max_columns=40).splitlines()
        rows = [line.split("\x1f") for line in lines]
        widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)
    except Exception:
        return object.__repr__(styler)


def _parts(figure):
    """Returns all that a figure shows, but not deeper than the parts of its axes."""
    return [*figure.get_children(), *(part for axes in figure.axes for part in axes.get_children())]


def _is_new(figure, saved):
    """True if a figure shows something that it did not show when it was last saved, or has not been saved."""
    if len(figure.get_children()) <= 1:
        return False  # nothing but its background
    known = saved.get(figure, ())
    return any(part not in known for part in _parts(figure))


def _is_kept(target):
    """True if the target of `savefig` is a file in DATA, or of an unknown kind."""
    if isinstance(target, io.BytesIO):
        return False
    path = getattr(target, "name", target)
    if not isinstance(path, (str, bytes, os.PathLike)):
        return True
    return os.path.realpath(os.fsdecode(path)).startswith(DATA + "/")


def _write(content, suffix):
    """Writes a new file, and returns its name."""
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
        os.unlink(path)  # no half of a picture is left
        raise
    _next[suffix] = number + 1
    return os.path.basename(path)
