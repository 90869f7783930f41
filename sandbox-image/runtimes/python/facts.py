"""Facts about a run that its output does not show, and what a program for a notebook needs.

The fork server runs this file as a module that is not in sys.modules, so that programs do not find it. Everything here
works on what a program has left behind, and may have changed in any way: a fact that cannot be found out is not
reported.
"""

import builtins
import json
import sys
import types

# Imported now, because the program may delete any of these.
from builtins import *

# As in the module `ast`, which is not imported here, so that programs do not find it loaded.
ONLY_AST, TOP_LEVEL_AWAIT, CO_COROUTINE = 0x400, 0x2000, 0x80

# Flags of a compiled program that `from __future__` has set.
FUTURE_FLAGS = 0x1FF0000

# Returns the classes of a class, even if the class itself names others.
MRO = vars(type)["__mro__"].__get__

# Maximum number of exceptions that are examined, of those that led to one another.
MAX_CAUSES = 20

# Maximum number of names of a kind, and of characters of each, that are reported.
MAX_NAMES, MAX_CHARS = 20, 100

# Maximum number of names that are compared with the one that was looked for.
MAX_COMPARED = 2000

# Bytes of a file, and rows of a table, that are searched for a header.
MAX_SAMPLE, MAX_ROWS = 1 << 16, 50

# Maximum length of the message, in bytes: the agent reads it at once.
MAX_BYTES = 3500


class Facts:
    """The facts about one run."""

    def __init__(self):
        self.known = {}
        # The facts as JSON, when the program has ended.
        self.packed = b""

    def left_out(self, lines):
        """Notes the lines of the program that were not run."""
        if lines:
            self.known["left_out"] = names(lines)

    def dropped(self, value):
        """Notes the value of the last line. Called as `sys.displayhook`."""
        try:
            if value is not None and not is_of_matplotlib(value):
                self.known["dropped_value"] = type(value).__name__[:MAX_CHARS]
        except BaseException:
            pass

    def failed(self, error):
        """Notes what is known about the exception that ended the program."""
        try:
            if (columns := columns_of(error)) is not None:
                self.known["columns"] = names(nearest_first(columns, error))
                if (header := header_of(error)) is not None:
                    self.known["header"] = header
            elif (sheets := sheets_of(error)) is not None:
                self.known["sheets"] = names(nearest_first(sheets, error))
            elif (shape := shape_of(error)) is not None:
                self.known["shape"] = shape
        except BaseException:
            pass

    def ended(self):
        """Notes the rest when the program has ended, and the libraries are as it left them."""
        try:
            if figures := sys.modules.get("sandbox_figures"):
                if unsaved := figures.unseen():
                    self.known["unsaved_figures"] = unsaved
            if self.known:
                packed = json.dumps(self.known).encode()
                self.packed = packed if len(packed) <= MAX_BYTES else b""
        except BaseException:
            pass


def names(all):
    some = [str(name)[:MAX_CHARS] for name in all[:MAX_NAMES]]
    return {"names": some, "more": len(all) - len(some)}


def plain(name):
    """Returns a name without what is hard to see: case, and characters that are invisible or look like a space."""
    import unicodedata

    text = unicodedata.normalize("NFKC", str(name))
    return " ".join("".join(c for c in text if c.isprintable()).split()).casefold()


def wanted_in(error):
    """Returns the names that an error may call missing."""
    import re

    text = error.name if isinstance(error, AttributeError) else error.args[0] if error.args else ""
    return [str(text), *re.findall(r"[`'\"]([^`'\"]+)[`'\"]", str(text))][:MAX_NAMES]


def nearest_first(all, error):
    """Returns the same names; if they are many, those that are like the name that was looked for come first."""
    if sum(len(str(name)) + 4 for name in all) < 200:
        return all
    from difflib import get_close_matches

    known = {}
    for name in all[:MAX_COMPARED]:
        known.setdefault(plain(name), []).append(name)
    near = [like for name in wanted_in(error) for like in get_close_matches(plain(name), known, 5)]
    first = dict.fromkeys(name for like in near for name in known[like])
    return [*first, *(name for name in all if name not in first)]


def is_of_matplotlib(value):
    """True for objects that matplotlib's functions return, so that a program can change what they have drawn."""
    # No method of the program's own classes is called.
    if type(value) in (list, tuple) and value:
        value = value[0]
    elif "numpy" in sys.modules and type(value) is sys.modules["numpy"].ndarray:
        if value.dtype == object and value.size:
            value = value.flat[0]
    modules = (vars(kind).get("__module__") for kind in MRO(type(value)))
    return any(str(name).partition(".")[0] in ("matplotlib", "mpl_toolkits") for name in modules)


# Starts and ends of messages of libraries about a missing column that are not a KeyError.
WITHOUT_COLUMN = ("Missing column", "Usecols do not match", "An entry with this name does not appear in `data`.")


def columns_of(error):
    """Returns the columns of the table that the innermost function of a library worked with, if the error may be about
    one of them."""
    if type(error) is ValueError:
        message = str(error.args[0]) if error.args else ""
        if not message.startswith(WITHOUT_COLUMN) and not message.endswith(WITHOUT_COLUMN):
            return None
    elif not is_for_column(error):
        return None
    for step in causes_of(error):
        frames = frames_of(step)
        is_of_arrow = frames and library_of(frames[-1]) == "pyarrow"
        for frame in reversed(frames):
            library = library_of(frame)
            if library in ("pandas", "seaborn"):
                columns = columns_in(frame.f_locals)
            elif is_of_arrow and library != "pyarrow":
                # Its functions are compiled, and show no variables: those of their caller are examined.
                return columns_of_arrow(frame.f_locals)
            else:
                continue
            if columns is not None:
                return columns
    return columns_of_row(error)


def causes_of(error):
    for _ in range(MAX_CAUSES):
        if error is None:
            break
        yield error
        error = error.__cause__ or error.__context__


def columns_of_row(error):
    """Returns the keys of a row of the module `csv`, if one of them is the key that was looked for except for invisible
    characters, such as a byte order mark."""
    wanted = error.args[0] if type(error) is KeyError and error.args else None
    if type(wanted) is not str:
        return None
    for value in list(frames_of(error)[-1].f_locals.values()):
        if type(value) is dict and any(type(key) is str and plain(key) == plain(wanted) for key in value):
            return list(value)
    return None


def header_of(error):
    """Returns the row of a table, counted from 0, that contains the column that was looked for: the header may be
    there."""
    wanted = {plain(name) for name in wanted_in(error)}
    for step in causes_of(error):
        for frame in reversed(frames_of(step)):
            table = table_in(frame.f_locals) if library_of(frame) == "pandas" else None
            if table is not None:
                rows = table.head(MAX_ROWS).itertuples(index=False)
                found = (at for at, row in enumerate(rows) if any(plain(value) in wanted for value in row))
                return next(found, None)
    return None


def is_for_column(error):
    """True if the error may be about a column, and not about a row, group or method."""
    if any(frame.f_code.co_name == "get_group" for frame in frames_of(error)):
        return False
    # Other missing attributes are rather methods that a library no longer has.
    if isinstance(error, AttributeError):
        return str(error.name)[:1].isupper() or "_" in str(error.name)
    # The error of `DataFrame.query`.
    if type(error).__name__ == "UndefinedVariableError":
        return True
    return isinstance(error, KeyError) and bool(error.args) and not isinstance(error.args[0], (int, float))


def frames_of(error):
    frames = []
    step = error.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    return frames


def sheets_of(error):
    """Returns the sheets of a workbook, if the error is about one that it does not have."""
    if type(error) not in (ValueError, KeyError) or not error.args:
        return None
    if not str(error.args[0]).startswith(("Worksheet named ", "Worksheet ")):
        return None
    frame = frames_of(error)[-1]
    book = frame.f_locals.get("self")
    if library_of(frame) == "openpyxl":
        return list(book.sheetnames)
    return list(book.sheet_names) if library_of(frame) == "pandas" else None


def library_of(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def columns_in(variables):
    """Returns the columns of the table that a function works with, or of the file that it reads."""
    if (table := table_in(variables)) is not None:
        return list(table.columns)
    # A file that is being parsed is not a table yet.
    for wanted, known in ("usecols", "names"), ("parse_dates", "columns"):
        if wanted in variables and variables.get(known) is not None:
            return list(variables[known])
    return None


def table_in(variables):
    for name in "self", "obj", "left", "right", "data":
        value = variables.get(name)
        value = getattr(value, "obj", value) if name == "self" else value
        if type(value).__name__ == "DataFrame":
            return value
    return None


# Errors of libraries that could not read a file as one table.
NO_TABLE = {"pandas": "ParserError", "polars": "ComputeError", "_duckdb": "InvalidInputException"}


def shape_of(error):
    """Returns where the tables of a text file seem to be, if a library could not read it as one table."""
    kind = type(error)
    if NO_TABLE.get(kind.__module__.partition(".")[0]) != kind.__name__ or not (path := path_of(error)):
        return None
    with open(path, "rb") as file:
        sample = file.read(MAX_SAMPLE)
    if b"\0" in sample:
        return None
    lines = sample.decode(errors="replace").splitlines()
    if len(sample) == MAX_SAMPLE:
        lines.pop()
    shapes = [(separator, blocks_of(lines, separator)) for separator in ",;\t|"]
    separator, blocks = max(shapes, key=lambda it: sum(size for _, size in it[1]))
    if not blocks:
        return None
    start, size = max(blocks, key=lambda block: block[1])
    later = [at for at, _ in blocks if at > start]
    if start == 0 and not later and separator == ",":
        return None
    return {"line": start + 1, "separator": separator, "next": later[0] + 1 if later else 0}


def path_of(error):
    """Returns the file that a library was reading."""
    import re

    for step in causes_of(error):
        for frame in reversed(frames_of(step)):
            for name in "filepath_or_buffer", "source":
                path = frame.f_locals.get(name)
                if is_file(path):
                    return path
    named = re.search(r'file "([^"]+)"', str(error))
    return named[1] if named and is_file(named[1]) else None


def is_file(path):
    import os

    # A number would mean an open file.
    try:
        return not isinstance(path, int) and os.path.isfile(path)
    except (TypeError, ValueError):
        return False


def blocks_of(lines, separator):
    """Returns runs of lines with the same number of fields, at least two: where they begin, counted from 0, and their
    length."""
    import csv

    blocks, fields = [], 0
    for at, line in enumerate(lines):
        count = len(next(csv.reader([line], delimiter=separator), ()))
        if count > 1 and count == fields:
            blocks[-1][1] += 1
        else:
            blocks.append([at, 1])
        fields = count
    return [block for block in blocks if block[1] > 1]


def columns_of_arrow(variables):
    """Returns the columns of a table, if there is only one among these variables."""
    tables = [value for value in variables.values() if type(value).__module__ == "pyarrow.lib"]
    tables = [table for table in tables if type(table).__name__ in ("Table", "RecordBatch")]
    return list(tables[0].schema.names) if len(tables) == 1 else None


def compiled(text, script):
    """Returns the program without its last line, and that line, if it has a value; otherwise all of it, and None."""
    last = text.rstrip().rpartition(b"\n")[2]
    # Most programs end like this, with a line that has no value. An indented line is a part of something longer.
    if not last.startswith((b"print(", b"#", b" ", b"\t")):
        try:
            return divided(text, script)
        except SyntaxError:
            raise
        except Exception:
            pass  # nested too deeply to be divided
    return compile(text, script, "exec", dont_inherit=True), None


def divided(text, script):
    tree = compile(text, script, "exec", flags=ONLY_AST, dont_inherit=True)
    last = None
    # A constant may be the program's docstring.
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        if type(tree.body[-1].value).__name__ != "Constant":
            last = tree.body.pop()
    program = compile(tree, script, "exec", dont_inherit=True)
    if last is None:
        return program, None
    from _ast import Interactive

    flags = program.co_flags & FUTURE_FLAGS
    return program, compile(Interactive([last]), script, "single", flags=flags, dont_inherit=True)


# Starts of lines that only notebooks understand, and that a program can do without.
LEFT_OUT = (b"%", b"!pip ", b"!pip3 ", b"!conda ", b"!uv ")

# The commands for whole cells below which there is Python.
TIMERS = (b"%%time", b"%%capture")


# Maximum number of lines that are left out.
MAX_LEFT_OUT = 50


def adapted(text, script):
    """Returns a program for a notebook in a form that compiles, and the lines that were left out; None if there is no
    such form. The program as it is does not compile. Only lines at which the compiler has stopped are left out."""
    lines = text.split(b"\n")
    left_out = []
    while len(left_out) <= MAX_LEFT_OUT:
        try:
            text = b"\n".join(lines)
            return compile(text, script, "exec", flags=TOP_LEVEL_AWAIT, dont_inherit=True), left_out
        except SyntaxError as error:
            number = error.lineno
        except Exception:
            break
        if not number or number > len(lines):
            break
        line = lines[number - 1]
        bare = line.lstrip()
        if not bare.startswith(LEFT_OUT) or bare.startswith(b"%%") and not bare.startswith(TIMERS):
            break
        lines[number - 1] = line[: len(line) - len(bare)] + b"pass"
        left_out.append(bare.decode(errors="replace").strip())
    return None, []


def runner_of(program):
    """Returns the function that runs a program: one that waits at its top level needs an event loop."""
    if not program.co_flags & CO_COROUTINE:
        return exec
    import asyncio

    def run(program, names):
        asyncio.run(types.FunctionType(program, names)())

    return run


def offer_display(text):
    """Gives the program the function that notebooks have, if it seems to use it."""
    if b"display(" in text and not hasattr(builtins, "display"):

        def display(*things, **_):
            for thing in things:
                print(thing)

        builtins.display = display
