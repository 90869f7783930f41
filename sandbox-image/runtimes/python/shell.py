"""The shell that runs the cells of a workspace: IPython's, as in a notebook, but without sockets, files or colours.

The kernel runs this file as a module that is not in sys.modules. Outputs go to the real standard output and standard
error. A picture that a notebook would show becomes a file in /mnt/data.
"""

import builtins
import contextlib
import inspect
import io
import itertools
import os
import re
import subprocess
import sys
import types

# Functions that are needed here are imported before any user code runs.
from builtins import *

# The formats in which objects are written to files, the richest first, and the suffixes of the files.
RICHEST = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "text/latex": "tex",
    "text/markdown": "md",
    "application/json": "json",
    "text/plain": "txt",
}

# The modules that contain the classes of pictures.
PICTURES = "PIL.Image", "IPython.core.display"

# Text that may be more than Python: escapes and questions, prompts, an indent to be left out, and tabs, which only the
# tokens can tell apart.
MORE_THAN_PYTHON = re.compile(r"[%!?\t]|^\s*(?:[,;/]|>>>|In \[|\.\.\.)|\A\s", re.MULTILINE)

# Limits of a list of variables: their number, characters of a name and of a value's summary, and bytes of all of them.
MAX_VARIABLES, MAX_CHARS, MAX_BYTES = 500, 100, 96 << 10

WORD = re.compile(r"\w+")

# The magic command that chooses how notebooks show figures.
INLINE_BACKEND = "InlineBackend"


def make(main, data):
    """Returns a shell whose variables are those of this module, and which writes files to this folder; a plain one if
    there is no IPython, as in tests without an image."""
    try:
        import IPython.core.interactiveshell
    except ImportError:
        return PlainShell(main)
    return notebook_shell(main, data)


class Outcome:
    """The result of a cell."""

    def __init__(self, error=None, text=None):
        self.error = error
        # Text form of the last expression's value, if it has one.
        self.text = text


def notebook_shell(main, data):
    from IPython.core import display_functions, displayhook, displaypub, history, interactiveshell, profiledir
    from IPython.core.autocall import ExitAutocall, IPyAutocall
    from IPython.core.display import TextDisplayObject
    from IPython.core.macro import Macro
    from IPython.utils.text import LSString, SList
    from traitlets import Type
    from traitlets.config import Config

    class ProfileDir(profiledir.ProfileDir):
        """A folder that is not created."""

        def _location_changed(self, change):
            pass

        def check_dirs(self):
            pass

    class DisplayHook(displayhook.DisplayHook):
        """Keeps the text of the last value instead of printing it."""

        text = None

        def start_displayhook(self):
            self._is_active = True

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            self.text = format_dict.get("text/plain")

        def fill_exec_result(self, result):
            super().fill_exec_result(result)
            show_picture(result)

        def finish_displayhook(self):
            self._is_active = False

        def log_output(self, format_dict):
            pass

    class DisplayPublisher(displaypub.DisplayPublisher):
        """Prints what is displayed, in order with everything else."""

        def publish(self, data, metadata=None, *args, **more):
            if (text := data.get("text/plain")) is not None:
                print(text)

        def clear_output(self, wait=False):
            pass

    class HistoryManager(history.HistoryManager):
        """Remembers cells as IPython does, but without its database."""

        def store_inputs(self, line_num, source, source_raw=None):
            text = (source if source_raw is None else source_raw).rstrip("\n")
            if self._exit_re.match(text.strip()):
                return
            self.input_hist_parsed.append(source.rstrip("\n"))
            self.input_hist_raw.append(text)
            *_, oldest, older, old, _ = ["", "", "", *self.input_hist_raw[-4:]]
            self.shell.push({"_i": old, "_ii": older, "_iii": oldest, f"_i{line_num}": text}, interactive=False)

    class Exit(ExitAutocall):
        """Ends the cell, as `sys.exit` does."""

        def __call__(self, code=None):
            raise SystemExit(code)

    class Shell(interactiveshell.InteractiveShell):
        displayhook_class = Type(DisplayHook)
        display_pub_class = Type(DisplayPublisher)

        def init_ipython_dir(self, ipython_dir):
            self.ipython_dir = os.path.join(os.path.expanduser("~"), ".ipython")

        def _ipython_dir_changed(self, change):
            pass

        def init_profile_dir(self, profile_dir):
            self.profile_dir = ProfileDir(location=os.path.join(self.ipython_dir, "profile_default"))

        def init_history(self):
            self.history_manager = HistoryManager(shell=self, parent=self)
            self.configurables.append(self.history_manager)

        def init_path(self):
            pass

        def init_virtualenv(self):
            pass

        def init_prompts(self):
            pass

        def _tee(self, channel):
            return contextlib.nullcontext()

        def showtraceback(self, exc_tuple=None, *args, **more):
            kind = exc_tuple[0] if exc_tuple else sys.exc_info()[0]
            # SystemExit ends the cell and is not an error.
            if kind is None or not issubclass(kind, SystemExit):
                name_modules(self.compile._filename_map)
                super().showtraceback(exc_tuple, *args, **more)

        def _showtraceback(self, etype, evalue, stb):
            self.showing_traceback = True
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            # Not to sys.stderr: a cell that catches what is written there still shows why it failed.
            with open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as output:
                print(self.InteractiveTB.stb2text(stb), file=output)
            self.showing_traceback = False

        def transform_cell(self, raw_cell):
            if self.is_python(raw_cell):
                return raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
            return super().transform_cell(raw_cell)

        def is_python(self, cell):
            """Whether a cell certainly contains nothing that IPython would translate to Python: finding that out from
            its tokens takes a quarter of the time of a short one."""
            if not cell or MORE_THAN_PYTHON.search(cell) or self.transformers() != self.usual_transformers:
                return False
            if len(cell.splitlines()) > 1:
                return True
            # The first word of a single line may be a magic command, or something that is called by its name.
            word = WORD.match(cell)
            word = word and word[0]
            is_called = isinstance(self.user_ns.get(word), (IPyAutocall, Macro))
            return not (is_called or self.autocall or word in self.magics_manager.magics["line"])

        def transformers(self):
            """Returns the number of transformers of each kind; cells can add their own."""
            manager = self.input_transformer_manager
            kinds = manager.cleanup_transforms, manager.line_transforms, manager.token_transformers
            return [len(kind) for kind in (*kinds, self.input_transformers_post)]

        def show_usage_error(self, exc):
            print(f"UsageError: {exc}", file=sys.stderr)

        def system(self, cmd):
            sys.stdout.flush()
            sys.stderr.flush()
            self.user_ns["_exit_code"] = subprocess.call(self.var_expand(cmd, depth=1), shell=True)

        system_piped = system_raw = system

        def getoutput(self, cmd, split=True, depth=0):
            cmd = self.var_expand(cmd, depth=depth + 1)
            ended = subprocess.run(cmd, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.user_ns["_exit_code"] = ended.returncode
            text = ended.stdout.decode(errors="replace")
            return SList(text.splitlines()) if split else LSString(text)

        def enable_gui(self, gui=None):
            pass

        def enable_matplotlib(self, gui=None):
            # Figures become files, whichever backend is asked for.
            return gui or "inline", "agg"

        def _show_matplotlib_backend(self, gui, backend):
            pass

        def run_line_magic(self, magic_name, line, _stack_depth=1):
            if magic_name == "config" and line.startswith(INLINE_BACKEND):
                return None
            return super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)

    def show_picture(value):
        """Makes a file of a figure or picture that is displayed, or is the last value."""
        figures = sys.modules.get("matplotlib.figure")
        if figures and isinstance(value, figures.Figure):
            sys.modules["sandbox_figures"].display(value)
            return
        pictures = [getattr(sys.modules.get(module), "Image", None) for module in PICTURES]
        if any(isinstance(kind, type) and isinstance(value, kind) for kind in pictures):
            write(*richest(value))

    def display(*objs, to=None, **more):
        if to is None:
            for thing in objs:
                show_picture(thing)
            return display_to_output(*objs, **more)
        if to != "file":
            raise ValueError('display can show things, or write them with to="file"')
        for thing in objs:
            write(*richest(thing))

    def richest(thing):
        """Returns the richest form of an object, and the suffix of its file."""
        if figures := sys.modules.get("matplotlib.figure"):
            if isinstance(thing, figures.Figure):
                picture = io.BytesIO()
                thing.savefig(picture, format="png", dpi="figure")
                return picture.getvalue(), "png"
        with all_formats():
            forms, _ = shell.display_formatter.format(thing)
        for kind, suffix in RICHEST.items():
            if kind in forms:
                form = forms[kind]
                if isinstance(form, str):
                    # Some libraries give pictures in base64, and others as they are.
                    if kind.startswith(("image/p", "image/j", "application/pdf")):
                        import base64

                        return base64.b64decode(form), suffix
                    return form.encode(errors="backslashreplace"), suffix
                return form if isinstance(form, bytes) else repr(form).encode(), suffix
        return str(thing).encode(errors="backslashreplace"), "txt"

    @contextlib.contextmanager
    def all_formats():
        formatter = shell.display_formatter
        active, formatter.active_types = formatter.active_types, formatter.format_types
        try:
            yield
        finally:
            formatter.active_types = active

    def write(content, suffix):
        for number in itertools.count(1):
            try:
                with open(f"{data}/display_{number}.{suffix}", "xb") as file:
                    file.write(content)
                return
            except FileExistsError:
                pass

    display_to_output = display_functions.display
    display.__doc__ = display_to_output.__doc__
    display_functions.display = interactiveshell.display = display
    interactiveshell.warn = types.FunctionType(warn_of.__code__, {"warn": interactiveshell.warn}, "warn")

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.HistoryManager.hist_file = ":memory:"
    settings.InteractiveShell.colors = "nocolor"
    settings.InteractiveShell.display_page = True
    settings.InteractiveShell.history_load_length = 0
    # Only the form that is asked for is computed: tables as HTML take longer than most cells.
    settings.DisplayFormatter.active_types = ["text/plain"]
    shell = Shell.instance(config=settings, user_module=main)
    shell.usual_transformers = shell.transformers()
    texts = shell.display_formatter.formatters["text/plain"]
    texts.for_type(TextDisplayObject, lambda thing, printer, _: printer.text(str(thing.data)))
    # A file is written instead of opening a browser (see sandbox_figures.py).
    os.environ.setdefault("PLOTLY_RENDERER", "browser")
    if "IPython.display" in sys.modules:
        sys.modules["IPython.display"].display = display
    builtins.display = display
    exiter = Exit(shell)
    for name in "exit", "quit":
        shell.user_ns[name] = shell.user_ns_hidden[name] = exiter
        shell.builtin_trap.auto_builtins.pop(name, None)
    shell.compile.get_code_name = lambda raw, transformed, number: f"Cell In[{number}]"
    return NotebookShell(shell)


def warn_of(message, *args, **more):
    """Replaces `warnings.warn`, to leave out the warning that tells how to exit."""
    if not str(message).startswith("To exit:"):
        more["stacklevel"] = more.get("stacklevel", 1) + 1
        warn(message, *args, **more)


def name_modules(cells):
    """Tells `inspect` which module cells belong to, and that the frames of this file and of our modules are to be left
    out of tracebacks as IPython's own are. Otherwise all modules would be asked for their files, a few times for each frame of a cell:
    that takes seconds if a function has called itself without end."""
    this = make.__code__.co_filename
    ours = this, os.path.join(os.path.dirname(this), "modules", "tools.py")
    with contextlib.suppress(OSError):
        folder = os.getcwd()
        for name, module in (*((name, "IPython") for name in ours), *((name, "__main__") for name in cells)):
            for file in name, os.path.join(folder, name):
                inspect.modulesbyfile[file] = module


class NotebookShell:
    """IPython's shell as the kernel sees it."""

    def __init__(self, shell):
        self.shell = shell

    @property
    def namespace(self):
        return self.shell.user_ns

    def hidden(self, name, value):
        """True if the variable was there before the first cell, and is still the same."""
        marker = object()
        return self.shell.user_ns_hidden.get(name, marker) is value

    @staticmethod
    def failed(error):
        return Outcome(error)

    def run(self, text):
        shell = self.shell
        shell.displayhook.text = None
        count = shell.execution_count
        result = shell.run_cell(text, store_history=True)
        # An empty cell counts as well.
        if shell.execution_count == count:
            shell.execution_count += 1
        error = result.error_before_exec or result.error_in_exec
        return Outcome(error, shell.displayhook.text)

    def warm_up(self):
        """Runs cells that leave no trace: the first ones take longest."""
        shell = self.shell
        before = [dict(names) for names in (shell.user_ns, shell.user_ns_hidden)]
        outputs = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = io.StringIO()
        try:
            for text in EXERCISES:
                self.run(text)
        finally:
            sys.stdout, sys.stderr = outputs
        history = shell.history_manager
        history.reset(new_session=False)
        history.input_hist_parsed[:] = history.input_hist_raw[:] = [""]
        shell.displayhook.text = None
        hook = shell.displayhook
        hook._ = hook.__ = hook.___ = ""
        shell.user_ns["_oh"].clear()
        for names, were in zip((shell.user_ns, shell.user_ns_hidden), before):
            names.clear()
            names.update(were)
        shell.execution_count = 1
        shell.compile._filename_map.clear()
        for name in "last_exc", "last_type", "last_value", "last_traceback":
            vars(sys).pop(name, None)
        import linecache

        for files in linecache.cache, inspect.modulesbyfile:
            for name in [name for name in files if os.path.basename(name).startswith("Cell In[")]:
                del files[name]

    def forked(self):
        """Renews what a fork shares with the process that it was forked from."""
        helpers = sys.modules.get("IPython.core.async_helpers")
        if loop := getattr(helpers, "_asyncio_event_loop", None):
            renew(loop)
        # The thread in which its loop ran does not exist in a fork.
        if magics := self.shell.magics_manager.registry.get("ScriptMagics"):
            magics.event_loop = None


EXERCISES = (
    "1 + 1",
    "def _f(x):\n    return 1 / x\n_f(0)",
    "import sys\nif 'pandas' in sys.modules:\n    import pandas\n    display(pandas.DataFrame({'a': [1, 2, 3]}).sum())",
    "print(2 + 2)\n[1, 2]",
)


def renew(loop):
    """Gives an event loop of asyncio a selector of its own: otherwise it would share the descriptor."""
    if loop.is_closed():
        return
    old = loop._selector
    new = type(old)()
    for key in list(old.get_map().values()):
        new.register(key.fileobj, key.events, key.data)
    loop._selector = new
    old.close()
    loop._close_self_pipe()
    loop._make_self_pipe()


class PlainShell:
    """Runs cells without IPython: last values and top-level `await`, but nothing else of a notebook."""

    def __init__(self, main):
        self.namespace = vars(main)
        self.namespace.setdefault("__builtins__", builtins)
        self.before = dict(self.namespace)
        self.count = 0
        self.loop = None
        if not hasattr(builtins, "display"):
            builtins.display = lambda *things, **_: [print(thing) for thing in things][:0] or None

    @staticmethod
    def failed(error):
        return Outcome(error)

    def hidden(self, name, value):
        return self.before.get(name, self) is value

    def run(self, text):
        import ast
        import linecache
        import traceback

        self.count += 1
        name = f"Cell In[{self.count}]"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        value = None
        try:
            tree = compile(text, name, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            self.evaluate(tree, name, "exec")
            if last is not None:
                value = self.evaluate(last, name, "eval")
            return Outcome(None, None if value is None else repr(value))
        except SystemExit as left:
            return Outcome(left)
        except BaseException as error:
            step = error.__traceback__
            while step and step.tb_frame.f_code.co_filename != name:
                step = step.tb_next
            traceback.print_exception(type(error), error, step)
            return Outcome(error)

    def evaluate(self, tree, name, mode):
        import ast

        program = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(program, self.namespace)
        if not inspect.iscoroutine(value) or not program.co_flags & inspect.CO_COROUTINE:
            return value
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(value)

    def warm_up(self):
        pass

    def forked(self):
        if self.loop:
            renew(self.loop)


def contents(shell):
    """Returns the user's variables, and the modules from which the others come."""
    variables, modules, more, size, found = [], set(), 0, 0, []
    for name, value in list(shell.namespace.items()):
        if type(name) is not str or name.startswith("_") or shell.hidden(name, value):
            continue
        found.append((name, value))
        module = module_of(value)
        if module and module not in modules and len(modules) < MAX_VARIABLES and size < MAX_BYTES:
            modules.add(module)
            size += 4 * len(module)
    sources = [vars(MODULES[name]) for name in modules if type(MODULES.get(name)) is types.ModuleType]
    for name, value in found:
        if type(value) is types.ModuleType or is_imported(name, value, sources):
            continue
        if len(variables) == MAX_VARIABLES or size > MAX_BYTES:
            more += 1
            continue
        variables.append({"name": name[:MAX_CHARS], "summary": summary(value)[:MAX_CHARS]})
        size += 40 + sum(4 * len(text) for text in variables[-1].values())
    return {"variables": variables, "more": more, "imports": sorted(modules)}


# Attributes as the types have them, so that no user code runs.
MODULE_OF_TYPE, MRO, MODULES = vars(type)["__module__"].__get__, vars(type)["__mro__"].__get__, sys.modules

# Values that a variable shares with a module without having been imported, because there is one object of each.
SHARED = (bool, int, str, type(None))


def is_class(value):
    return type in MRO(type(value))


def is_imported(name, value, sources):
    """Whether one of these modules has the value under its name, as after `from module import *`."""
    if type(value) in SHARED:
        return False
    own = None
    if is_class(value):
        own = NAME(value)
    elif type(value) in (types.FunctionType, types.BuiltinFunctionType):
        own = value.__name__
    names = {name, own} if type(own) is str else {name}
    return any(source.get(each) is value for source in sources for each in names)


def module_of(value):
    """Returns the module that a value is, or from which it was imported: the outermost that has it. None for a value
    that does not know its module, such as a number."""
    kind = type(value)
    if kind is types.ModuleType:
        module = vars(value).get("__name__")
        return module[:MAX_CHARS] if type(module) is str else None
    if is_class(value):
        module, name = MODULE_OF_TYPE(value), NAME(value)
    elif kind in (types.FunctionType, types.BuiltinFunctionType):
        module, name = value.__module__, value.__name__
    else:
        return None
    if type(module) is not str or type(name) is not str or module in ("__main__", "builtins"):
        return None
    parts = module.split(".")
    for count in range(1, len(parts)):
        outer = ".".join(parts[:count])
        found = MODULES.get(outer)
        if type(found) is types.ModuleType and vars(found).get(name) is value:
            return outer[:MAX_CHARS]
    return module[:MAX_CHARS]


# Types whose length is reported. A value of another type is not asked for anything, because that could run user code.
SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, memoryview)

# Types of libraries with a shape, by their module.
SHAPED = {
    "numpy": ("ndarray",),
    "pandas": ("DataFrame", "Series", "Index", "RangeIndex", "DatetimeIndex", "MultiIndex", "Categorical"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("Table",),
}

NAME = vars(type)["__name__"].__get__


def summary(value):
    """Type and size of a value."""
    kind = type(value)
    name = NAME(kind)
    try:
        if kind in SIZED:
            return f"{name} {len(value)}"
        for module, names in SHAPED.items():
            if name in names and kind is vars(sys.modules.get(module)).get(name):
                return f"{name} {'x'.join(str(int(length)) for length in value.shape)}".strip()
    except Exception:
        pass
    return name
