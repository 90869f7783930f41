"""Runs programs and cells in the embedded engine's Python.

There are no processes: each program runs in a copy of the interpreter as it was when the image was made, and each
workspace has such a copy of its own. The engine calls one function at a time:

    program(text, timezone, report)   runs a program in this interpreter, which is discarded afterwards
    cell(text, timezone, report)      runs a cell: the interpreter remains
    look(report)                      reports the interpreter's variables
    summarize(path, encoding, report) reports what is in a file; this interpreter is discarded afterwards

`timezone` is a name, or None for UTC, and `report` is the descriptor to which the functions write the result as JSON.
Facts are the same as those of the kernel in containers (facts.py), and cells are run by the same shell (shell.py).
"""

import builtins
import contextlib
import gc
import importlib.machinery
import io
import json
import linecache
import os
import random
import re
import sys
import time
import types

from builtins import *
from json import dumps as render
from os import write as write_to

SCRIPT, DATA = "/tmp/main.py", "/mnt/data"

# Bytes of a value's text that are reported, and how many of these are its start.
MAX_RESULT, MAX_HEAD = 32 << 10, (32 << 10) * 3 // 5

# Modules that are imported when the image is made, so that no program has to import them.
PRELOAD = """
abc argparse array ast asyncio base64 bisect calendar cmath codecs collections collections.abc concurrent.futures
contextlib contextvars copy csv dataclasses datetime decimal difflib enum fractions functools glob gzip hashlib heapq
html html.parser http inspect io itertools json logging math mimetypes numbers operator os os.path pathlib pickle
platform pprint queue random re secrets shutil signal socket sqlite3 statistics string struct tempfile textwrap
threading time timeit traceback types typing unicodedata unittest urllib urllib.parse urllib.request uuid warnings
weakref xml.etree.ElementTree zipfile zlib zoneinfo
numpy numpy.random numpy.linalg numpy.fft pandas pandas.plotting scipy scipy.stats scipy.optimize
matplotlib matplotlib.pyplot matplotlib.dates matplotlib.ticker matplotlib.backends.backend_agg
matplotlib.backends.backend_pdf mpl_toolkits.axes_grid1 seaborn statsmodels.api sklearn.linear_model
sklearn.cluster sklearn.preprocessing sklearn.model_selection sklearn.metrics sklearn.ensemble
openpyxl xlsxwriter PIL.Image PIL.ImageDraw PIL.ImageFont reportlab.platypus reportlab.lib.styles
reportlab.lib.pagesizes reportlab.pdfgen.canvas tabulate jinja2 yaml lxml.etree bs4 networkx sympy tzdata
""".split()

# Typical first steps of programs and cells, which are run when the image is made.
EXERCISES = (
    "print(2 + 2)",
    "import pandas, io\n"
    "table = pandas.read_csv(io.StringIO('a,b,c\\n' + ''.join(f'{i},{i / 3},x{i % 5}\\n' for i in range(50))))\n"
    "for result in (table.sum(numeric_only=True), table.describe(), table.groupby('c').b.mean(), table): str(result)\n"
    "table.to_csv(io.StringIO())",
    "from matplotlib import pyplot\nimport io\npyplot.plot([1, 2, 3])\npyplot.title('title')\n"
    "pyplot.savefig(io.BytesIO(), format='png')\npyplot.close('all')",
    "import seaborn, pandas, io\nfrom matplotlib import pyplot\n"
    "seaborn.barplot(data=pandas.DataFrame({'x': list('abab'), 'y': [1, 2, 3, 4]}), x='x', y='y')\n"
    "pyplot.savefig(io.BytesIO(), format='png')\npyplot.close('all')",
    "import openpyxl, io\nbook = openpyxl.Workbook()\nbook.active.append([1])\nbook.save(io.BytesIO())",
    "import sqlite3\nsqlite3.connect(':memory:').execute('select 1').fetchall()",
    "def f(x):\n    return 1 / x\nf(0)",
    "import asyncio\nasync def f():\n    await asyncio.sleep(0)\nasyncio.run(f())",
)

# Text that the interpreter adds to the message about a missing module, because it runs without `site`.
NO_SITE = ". Site initialization is disabled"

# Commands with which notebooks install libraries.
INSTALLERS = "pip", "pip3", "conda", "mamba", "micromamba", "uv"

# Sources that are shared with containers, until they are loaded.
sources = {}

facts = shells = shell = summaries = None


def load(name, source):
    """Loads one of our modules, without adding it to `sys.modules`."""
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module


def library(name, source, **names):
    """Loads one of our modules that programs can import, with these names defined before it runs."""
    sys.modules[name] = module = types.ModuleType(name)
    vars(module).update(names)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


class OwnModules:
    """Finds those of our modules that programs can import. It comes last on the path, so that a module of the user's of
    the same name wins. They are compiled when the image is made."""

    programs = {}

    @classmethod
    def add(cls, name):
        # The path is that of the same file in a container, from the folder of the shell (shell.py).
        cls.programs[name] = compile(sources.pop(name), f"modules/{name}.py", "exec")

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, cls) if name in cls.programs else None

    @staticmethod
    def create_module(spec):
        pass

    @classmethod
    def exec_module(cls, module):
        exec(cls.programs[module.__name__], vars(module))


def output(number):
    """Returns a text stream without a buffer, so that output before a stop is not lost."""
    raw = io.FileIO(number, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)


def make_main():
    main = types.ModuleType("__main__")
    main.__spec__ = None
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    return main


def boot():
    """Prepares a plain interpreter for the image. Returns what could not be loaded."""
    global facts, shells, shell, summaries
    for number, name in (1, "stdout"), (2, "stderr"):
        stream = output(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    sys.argv[:] = [SCRIPT]
    # Libraries of the runtime, and packages that are installed while the sandbox runs.
    sys.path += "/usr/local/lib/site-packages", "/usr/local/lib/packages"
    os.chdir(DATA)
    patch_tracebacks()
    patch_asyncio()
    patch_system()
    patch_modes()
    fonts = library("sandbox_fonts", sources.pop("fonts"))
    patch_matplotlib(library("sandbox_figures", sources.pop("figures")), fonts)
    missing = []
    for name in PRELOAD:
        try:
            __import__(name)
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {error}"[:200])
    patch_libraries(fonts, sources.pop("tqdm"))
    # Under the name of this file, which its frames show in tracebacks.
    load("_llm_sandbox", sources.pop("numpy")).patch_numpy()
    patch_time()
    facts, shells = load("facts", sources.pop("facts")), load("shell", sources.pop("shell"))
    summaries = load("summary", sources.pop("summary"))
    OwnModules.add("tools")
    sys.meta_path.append(OwnModules)
    if "IPython" not in sys.modules:
        try:
            import IPython.core.interactiveshell
        except ImportError as error:
            missing.append(f"IPython: {error}"[:200])
    sys.path.insert(0, DATA)
    with quiet():
        for text in EXERCISES:
            run_program(text, facts.Facts())
        # Byte code changes after it has run a few times, because it is specialized.
        for _ in range(40):
            run_program("print(2 + 2)", facts.Facts())
            run_program("import pandas\nprint(pandas.DataFrame({'a': [1, 2, 3]}).sum())", facts.Facts())
    for name in "last_exc", "last_type", "last_value", "last_traceback":
        vars(sys).pop(name, None)
    linecache.clearcache()
    shell = shells.make(make_main(), DATA)
    patch_shell(getattr(shell, "shell", None))
    for _ in range(40):
        shell.warm_up()
    gc.collect()
    gc.freeze()
    make_immortal()
    return missing


def make_immortal():
    """Makes all objects immortal by their reference count: then references to them are not counted, and all sandboxes
    continue to share the pages that the objects are on. NumPy gives access to memory by address."""
    import numpy

    class Memory:
        def __init__(self, address):
            self.__array_interface__ = {"data": (address, False), "shape": (1,), "typestr": "<u4", "version": 3}

    count = int(numpy.asarray(Memory(id(None)))[0])
    known, found = set(), gc.get_objects() + gc.get_referents(*gc.get_objects())
    while found:
        more = []
        for thing in found:
            if id(thing) not in known and type(thing) is not types.FrameType:
                known.add(id(thing))
                if not gc.is_tracked(thing):
                    continue
                more.extend(gc.get_referents(thing))
        found = [thing for thing in more if id(thing) not in known]
    frames = {id(known), id(found)}
    addresses = numpy.array([address for address in known if address not in frames], dtype=numpy.uintp)
    for address in addresses.tolist():
        numpy.asarray(Memory(address))[0] = count


@contextlib.contextmanager
def quiet():
    outputs = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.StringIO()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = outputs


def patch_tracebacks():
    """Removes the text about `site` from messages about missing modules."""
    import traceback

    class_ = traceback.TracebackException
    make = class_.__init__

    def __init__(self, *args, **kwargs):
        make(self, *args, **kwargs)
        if type(text := getattr(self, "_str", None)) is str:
            self._str = text.partition(NO_SITE)[0]

    class_.__init__ = __init__


def patch_shell(notebook):
    """Answers commands for which a notebook would start a program: none can be started here."""
    if notebook is None:
        return
    from IPython.core.error import UsageError
    from IPython.utils.text import SList

    def refuse(name):
        print(
            f"{name}: there is no network here, so nothing was installed. Use the libraries that are there.",
            file=sys.stderr,
        )

    def system(command, *args, **kwargs):
        words = re.findall(r"[\w.-]+", command)
        if named := [word for word in words[:3] if word in INSTALLERS]:
            refuse(named[0])
            return SList()
        raise UsageError(f"!{command.strip()}: wasi does not support processes")

    notebook.system = notebook.system_piped = notebook.system_raw = notebook.getoutput = system
    for name in INSTALLERS:
        notebook.register_magic_function(lambda line, name=name: refuse(name), "line", name)


def patch_asyncio():
    """Gives asyncio an event loop that only waits for time, because WASI has neither sockets nor processes."""
    import asyncio.base_events
    import asyncio.events

    class Selector:
        def select(self, timeout=None):
            if timeout is None:
                raise RuntimeError("nothing will ever happen: no task can run, and nothing is waited for that can come")
            if timeout > 0:
                time.sleep(timeout)
            return []

        def get_map(self):
            return {}

        def close(self):
            pass

    class EventLoop(asyncio.base_events.BaseEventLoop):
        def __init__(self):
            super().__init__()
            self._selector = Selector()

        def _process_events(self, events):
            pass

        def _write_to_self(self):
            pass

        def run_in_executor(self, executor, func, *args):
            # There are no threads, so the function runs now.
            future = self.create_future()
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)
            return future

    def new_event_loop():
        return EventLoop()

    for module in asyncio, asyncio.events, asyncio.runners:
        if hasattr(module, "new_event_loop"):
            module.new_event_loop = new_event_loop
    asyncio.EventLoop = EventLoop
    policy = getattr(asyncio.events, "_get_event_loop_policy", lambda: None)()
    if policy is not None:
        type(policy).new_event_loop = lambda self: EventLoop()


def patch_system():
    """Sets the user and host names that programs request, and refuses unknown locales, as the C library accepts all."""
    import _locale
    import locale
    import platform
    import socket

    os.getlogin = lambda: os.environ.get("LOGNAME", "sandbox")
    socket.gethostname = platform.node = lambda: "sandbox"
    set_locale = _locale.setlocale

    def setlocale(category, name=None):
        if name and name.replace("-", "").lower() not in ("c", "posix", "c.utf8"):
            raise locale.Error("unsupported locale setting")
        return set_locale(category, name)

    _locale.setlocale = locale._setlocale = setlocale


def patch_modes():
    """Gives files the usual permissions of new files. WASI has no permissions, and files unpacked from an archive that
    a program has made would not be readable."""
    import functools
    import stat

    shown = os.stat_result.__match_args__
    hidden = [name for name in dir(os.stat_result) if name.startswith("st_") and name not in shown]

    def with_permissions(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            found = function(*args, **kwargs)
            mode = found.st_mode
            if stat.S_IMODE(mode):
                return found
            usual = 0o755 if stat.S_ISDIR(mode) else 0o777 if stat.S_ISLNK(mode) else 0o644
            return os.stat_result((mode | usual, *found[1:]), {name: getattr(found, name) for name in hidden})

        for able in os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks:
            if function in able:
                able.add(call)
        return call

    for name in "stat", "lstat", "fstat":
        setattr(os, name, with_permissions(getattr(os, name)))


def patch_libraries(fonts, tqdm_source):
    """Changes libraries and the environment in the same way as the container's image does."""
    import pandas
    import tqdm.std
    from pandas._config import config
    from pandas.io.formats.style import Styler
    from reportlab.pdfgen.textobject import PDFTextObject

    os.environ["COLUMNS"] = "200"
    for name, value in {"display.max_columns": 40, "display.width": 200}.items():
        config._registered_options[name] = config._registered_options[name]._replace(defval=value)
        pandas.set_option(name, value)
    tqdm.std.tqdm.monitor_interval = 0  # there are no threads
    tqdm.notebook = library("tqdm.notebook", tqdm_source, __package__="tqdm")
    Styler.__repr__ = sys.modules["sandbox_figures"].text_of
    fonts.complete_reportlab(PDFTextObject)


def patch_matplotlib(figures, fonts):
    """Saves figures that are shown as files, and takes glyphs that a font lacks from the next font."""
    os.environ.setdefault("MPLBACKEND", "agg")
    try:
        # pyplot copies the documentation of the methods that are replaced below.
        import matplotlib.pyplot
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends import backend_agg
        from matplotlib.figure import Figure
    except ImportError:
        return
    backend_agg._BackendAgg.FigureManager = windows = figures.manager_class(FigureManagerBase)
    backend_agg.FigureCanvasAgg.manager_class = windows
    backend_agg._BackendAgg.show = staticmethod(figures.show)
    for name in "FigureManager", "show":
        setattr(backend_agg, name, getattr(backend_agg._BackendAgg, name))
    save = Figure.savefig

    def savefig(self, fname, *, transparent=None, **kwargs):
        save(self, fname, transparent=transparent, **kwargs)
        figures.saved(self, fname, kwargs)

    savefig.__doc__ = save.__doc__
    Figure.savefig = savefig
    from matplotlib import font_manager, pyplot, rcParams, rcParamsDefault, rcParamsOrig

    manager = font_manager.fontManager
    families = ["sans-serif"]
    for path in filter(None, map(fonts.files().get, fonts.FALLBACKS)):
        manager.addfont(path)
        families.append(font_manager.FontProperties(fname=path).get_name())
    fonts.name_for_matplotlib(manager)
    font_manager._log.addFilter(fonts.once())
    for settings in rcParams, rcParamsDefault, rcParamsOrig:
        settings["font.family"] = families
    wanted = font_manager.FontManager._find_fonts_by_props

    def find_fonts(self, prop, *args, **more):
        if any(family not in prop.get_family() for family in families[1:]):
            prop = prop.copy()
            prop.set_family([*prop.get_family(), *families[1:]])
        return wanted(self, prop, *args, **more)

    font_manager.FontManager._find_fonts_by_props = find_fonts

    def pause(interval):
        time.sleep(interval)

    pyplot.pause = pause


zone = None

# A directive of strftime: flags, width, modifier and letter. The C library knows the letters in DIRECTIVES. If a format
# has another letter, it returns an empty text.
DIRECTIVE = re.compile(r"%([-_0^#+]*)(\d*)([EO]?)(.?)", re.DOTALL)
DIRECTIVES = "aAbBcCdDeFgGhHIjmMnprRsStTuUVwWxXyYzZ%"


def patch_time():
    """Gives programs the local time of `zone`, because the C library knows only UTC. The types are the interpreter's
    own. Methods cannot be assigned to them, but the dictionary behind `vars` can be changed."""
    import calendar
    import datetime
    import logging

    moment = datetime.datetime
    own, of_dates = (gc.get_referents(vars(kind))[0] for kind in (moment, datetime.date))
    names = "now", "fromtimestamp", "timestamp", "astimezone"
    now, fromtimestamp, timestamp, astimezone = (own[name] for name in names)
    epoch = moment(1970, 1, 1)
    localtime, strftime, mktime, seconds_now = time.localtime, time.strftime, time.mktime, time.time

    def is_naive(value):
        return zone is not None and value.tzinfo is None

    def local(value):
        return value if zone is None else value.replace(tzinfo=None)

    def of_now(cls, tz=None):
        return now.__get__(None, cls)(tz) if tz is not None else local(now.__get__(None, cls)(zone))

    def of_timestamp(cls, timestamp, tz=None):
        made = fromtimestamp.__get__(None, cls)
        return made(timestamp, tz) if tz is not None else local(made(timestamp, zone))

    def date_of_timestamp(cls, timestamp):
        day = of_timestamp(moment, timestamp)
        return cls(day.year, day.month, day.day)

    def today(cls):
        return cls.fromtimestamp(seconds_now())

    def to_timestamp(self):
        return timestamp(self.replace(tzinfo=zone) if is_naive(self) else self)

    def to_zone(self, tz=None):
        return astimezone(self.replace(tzinfo=zone) if is_naive(self) else self, zone if tz is None else tz)

    def to_localtime(seconds=None):
        if zone is None:
            return localtime(seconds)
        there = fromtimestamp.__get__(None, moment)(int(time.time() if seconds is None else seconds), zone)
        fields = there.timetuple()
        return time.struct_time((*fields, there.tzname(), int(there.utcoffset().total_seconds())))

    def from_localtime(fields):
        return to_timestamp(epoch + datetime.timedelta(seconds=calendar.timegm(fields))) if zone else mktime(fields)

    def part_of(fields, found):
        flags, width, _, letter = found.groups()
        if letter == "P":
            text = strftime("%p", fields).lower()
        elif letter == "Z" and zone and getattr(fields, "tm_zone", None):
            text = fields.tm_zone
        elif letter in "kl" and letter:
            text = f"{fields[3] if letter == 'k' else (fields[3] + 11) % 12 + 1:2}"
        elif letter and letter in DIRECTIVES:
            if not set(flags) & set("^#"):
                return found[0]
            text = strftime(f"%{width}{letter}", fields)
            text = text.upper() if "^" in flags else text.swapcase()
        else:
            text = found[0]
        return text.replace("%", "%%")

    def to_text(format, fields=None):
        fields = to_localtime() if fields is None else fields
        return strftime(DIRECTIVE.sub(lambda found: part_of(fields, found), format), fields)

    own.update(now=classmethod(of_now), fromtimestamp=classmethod(of_timestamp))
    own.update(timestamp=to_timestamp, astimezone=to_zone)
    of_dates.update(fromtimestamp=classmethod(date_of_timestamp), today=classmethod(today))
    time.localtime, time.mktime, time.strftime = to_localtime, from_localtime, to_text
    ctime, asctime = time.ctime, time.asctime
    time.ctime = lambda seconds=None: asctime(to_localtime(seconds)) if zone else ctime(seconds)
    time.asctime = lambda fields=None: asctime(to_localtime() if fields is None else fields)
    logging.Formatter.converter = staticmethod(to_localtime)
    getattr(sys, "_clear_type_cache", int)()


def set_zone(name):
    global zone
    import datetime
    import zoneinfo

    zone = zoneinfo.ZoneInfo(name)
    year = datetime.datetime.now().year
    halves = [datetime.datetime(year, month, 1, tzinfo=zone) for month in (1, 7)]
    standard, summer = sorted(halves, key=lambda half: half.utcoffset())
    time.tzname = standard.tzname(), summer.tzname()
    time.timezone, time.altzone = (-int(half.utcoffset().total_seconds()) for half in (standard, summer))
    time.daylight = int(standard.utcoffset() != summer.utcoffset())
    os.environ["TZ"] = name


def begin():
    """Seeds random numbers again, because a guest is a copy of the image."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


fresh = True


def start(timezone):
    global fresh
    if fresh:
        fresh = False
        begin()
        if timezone:
            set_zone(timezone)


def program(text, timezone, report):
    start(timezone)
    known = facts.Facts()
    code = run_program(text, known)
    flush()
    tell(report, {"code": code, "facts": known.known if known.packed else {}})


def run_program(text, known):
    """Runs a program as `python main.py` would. Returns the exit code."""
    main = make_main()
    main.__file__ = SCRIPT
    source = text.encode(errors="replace")
    linecache.cache[SCRIPT] = (len(source), None, text.splitlines(keepends=True), SCRIPT)
    code = 0
    hook = sys.displayhook
    try:
        try:
            program, last = facts.compiled(source, SCRIPT)
        except SyntaxError:
            last = None
            program, left_out = facts.adapted(source, SCRIPT)
            known.left_out(left_out)
            if program is None:
                raise
    except BaseException as error:
        error.__traceback__ = None
        known.ended()
        return show(error)
    facts.offer_display(source)
    try:
        facts.runner_of(program)(program, vars(main))
        if last is not None:
            sys.displayhook = known.dropped
            exec(last, vars(main))
    except SystemExit as left:
        code = code_of(left)
    except BaseException as error:
        error.__traceback__ = own_frames(error.__traceback__)
        code = show(error)
        known.failed(error)
    finally:
        sys.displayhook = hook
        try:
            import atexit

            atexit._run_exitfuncs()
        except BaseException:
            pass
    known.ended()
    return code


def own_frames(step):
    """Returns the traceback from the user's first frame on."""
    while step is not None and step.tb_frame.f_code.co_filename == __name__:
        step = step.tb_next
    return step


def code_of(left):
    """Returns the exit code of a SystemExit, as the interpreter does."""
    value = left.code
    if value is None:
        return 0
    if not isinstance(value, int):
        complain(value)
        return 1
    return int(value) & 0xFF


def complain(what):
    """Prints to standard error. Ignores errors, as user code may have replaced it."""
    try:
        print(what, file=sys.stderr)
    except BaseException:
        pass


def show(error):
    """Handles an uncaught exception as the interpreter does. Returns the exit code."""
    sys.last_exc = sys.last_value = error
    sys.last_type, sys.last_traceback = type(error), error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        try:
            sys.__excepthook__(type(error), error, error.__traceback__)
        except BaseException:
            complain(f"{type(error).__name__}")
    return 1


def cell(text, timezone, report):
    start(timezone)
    known = facts.Facts()
    try:
        outcome = shell.run(text)
    except BaseException as error:
        complain(f"{type(error).__name__}: {error}")
        outcome = shell.failed(error)
    code = 0
    if isinstance(outcome.error, SystemExit):
        code = code_of(outcome.error)
    elif outcome.error is not None:
        code = 1
        known.failed(outcome.error)
    try:
        if "matplotlib._pylab_helpers" in sys.modules and (figures := sys.modules.get("sandbox_figures")):
            figures.show()
    except BaseException as error:
        complain(f"{type(error).__name__}: {error}")
    known.ended()
    flush()
    head = {"code": code, "facts": known.known if known.packed else {}}
    if isinstance(outcome.text, str):
        whole = str.encode(outcome.text, errors="backslashreplace")
        start_, end = whole, b""
        if len(whole) > MAX_RESULT:
            start_, end = whole[:MAX_HEAD], whole[MAX_HEAD - MAX_RESULT :]
        # The text has one character for each byte.
        head["result"] = [start_.decode("latin-1"), end.decode("latin-1"), len(whole)]
    tell(report, head)


def flush():
    for name in "stdout", "stderr":
        stream = getattr(sys, name, None)
        try:
            if stream.closed:
                stream = output(1 if name == "stdout" else 2)
                setattr(sys, name, stream)
            stream.flush()
        except BaseException:
            pass


def tell(report, what):
    write_to(report, render(what).encode())


def summarize(path, encoding, report):
    path = os.path.join(DATA, path)
    # Links lead elsewhere, also those of folders.
    if os.path.realpath(path) != path:
        return
    file = os.open(path, os.O_RDONLY)
    write_to(report, summaries.report_of(file, path.rpartition("/")[2], encoding, facts))


def look(report):
    tell(report, shells.contents(shell))
