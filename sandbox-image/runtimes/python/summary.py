"""Summaries of tables: what is in a file of CSV, Excel, Parquet or JSON.

The fork server forks a process for each summary, which gets the open file and never a path (`serve`); on the embedded
engine a guest of its own reads the file (`of_file`). The file may be anything, and made to harm its reader: no more
than MAX_READ bytes are read, no more than MAX_INFLATED bytes are unpacked of a part of a workbook, and what cannot be
read within these limits has no summary. The server checks and shortens what is reported here.

Encodings are those that the server has recognized, and tables in texts are found by `facts.blocks_of`, so that a
summary and the notes of a run say the same.
"""

import io
import itertools
import json
import os
import re
import stat
import struct
import sys

# Bytes that are read of a text, and of a whole file: a workbook's or Parquet's directory is read in addition.
MAX_TEXT, MAX_READ = 1 << 20, 3 << 20

# Bytes that are unpacked of a part of a workbook, and that the footer of Parquet may have.
MAX_INFLATED, MAX_FOOTER = 512 << 10, 1 << 20

# Cells and rows that decide types and in which missing values and examples are looked for.
MAX_CELLS, MAX_ROWS = 10_000, 1000

# Rows that are read of a workbook's sheet.
MAX_SHEET_ROWS = 200

# Columns and sheets that are reported, and characters of their names and of an example.
MAX_COLUMNS, MAX_SHEETS, MAX_NAME, MAX_EXAMPLE, EXAMPLES = 30, 10, 60, 40, 3

# Lines at the start of a text that show its separator.
MAX_LINES = 50

# Members of a gzip file that are unpacked: some programs write one for each block.
MAX_MEMBERS = 20

# Bytes of a report, and of a piece of one.
MAX_REPORT = PIECE = 32 << 10

# Processor time for a page.
PAGE_SECONDS = 5

# Values that stand for a missing one, as pandas has them.
MISSING = frozenset(
    ("", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "<NA>", "-nan", "-NaN", "#NA", "1.#IND")
)

TEXTS = {"csv": "csv", "tsv": "tsv", "tab": "tsv"}
RECORDS = ("json", "jsonl", "ndjson")
GZIP = b"\x1f\x8b"


class NoSummary(Exception):
    """There is none: the file is something else, or larger than the limits."""


class Source(io.RawIOBase):
    """A file of which no more than MAX_READ bytes are read."""

    def __init__(self, number):
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise NoSummary
        self.size = found.st_size
        self.left = MAX_READ
        self.file = io.FileIO(number, "rb", closefd=False)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        return self.file.seek(offset, whence)

    def tell(self):
        return self.file.tell()

    def readinto(self, buffer):
        if len(buffer) > self.left:
            raise NoSummary
        count = self.file.readinto(buffer) or 0
        self.left -= count
        return count

    def part(self, start, length):
        """Returns a part of the file, or less of it if it ends there."""
        if length > self.left:
            raise NoSummary
        self.seek(start)
        found = self.file.read(length) or b""
        self.left -= len(found)
        return found


def of_file(number, name, encoding, facts):
    """Returns the summary of an open file, as a dictionary. Raises if there is none."""
    source = Source(number)
    # The first bytes say what a file is. Its name, which may be wrong, only tells texts apart.
    start = source.part(0, 8)
    if start[:4] == b"PAR1":
        return of_parquet(source)
    if start[:4] == b"PK\3\4":
        return of_workbook(source)
    if start[:4] == b"\xd0\xcf\x11\xe0":
        return of_old_workbook(source)
    is_packed = start[:2] == GZIP
    if is_packed:
        data, whole = unpacked(source)
        encoding = encoding_of(data)
    else:
        data = source.part(0, min(source.size, MAX_TEXT))
        whole = len(data) == source.size
    text, encoding = decoded(data, encoding, whole)
    kind = name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in TEXTS and text.lstrip()[:1] in ("{", "["):
        found = of_json(text, kind if kind in RECORDS else "json", encoding, whole)
    else:
        found = of_text(text, kind, encoding, whole, facts)
    if is_packed:
        found["gzip"] = True
    return found


# Texts


def unpacked(source):
    """Returns the start of what is in a gzip file, and whether that is all of it."""
    import zlib

    packed = source.part(0, min(source.size, MAX_TEXT))
    is_cut, pieces, left = len(packed) < source.size, [], MAX_TEXT
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        pieces.append(member.decompress(packed, left))
        left -= len(pieces[-1])
        packed = member.unused_data.lstrip(b"\0")
        if not member.eof or not packed or not left:
            break
    return b"".join(pieces), member.eof and not packed and not is_cut


def encoding_of(data):
    """The encoding that a byte order mark names. The server recognizes only those of files that are not packed."""
    if data[:3] == b"\xef\xbb\xbf":
        return "utf-8-sig"
    return "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else None


def decoded(data, encoding, whole):
    """Returns a text and its encoding."""
    name = encoding or "utf-8"
    try:
        text = decode(data, name, "strict", whole)
    except UnicodeDecodeError:
        text = decode(data, name, "replace", whole)
        # The server knows the start alone. Damaged UTF-8 has more characters of several bytes than faults.
        if name == "utf-8" and len(re.findall("[^\0-\x7f\ufffd]", text)) <= text.count("\ufffd"):
            name = "cp1252"
            text = decode(data, name, "replace", whole)
    if "\0" in text or not text or text.isspace():
        raise NoSummary
    return text.removeprefix("\ufeff"), name


def decode(data, name, errors, whole):
    import codecs

    return codecs.getincrementaldecoder(name)(errors).decode(data, whole)


def lines_of(text, whole):
    """Returns a text with one kind of line ends and without a line that is cut."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not whole:
        text = text[: text.rfind("\n") + 1]
    if not text:
        raise NoSummary
    return text


# A first line by which Excel is told the separator.
SEPARATOR_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?\n', re.IGNORECASE)


def of_text(text, kind, encoding, whole, facts):
    import csv  # here, so that the fork server, and so programs, do not find it loaded

    text = lines_of(text, whole)
    told = SEPARATOR_LINE.match(text)
    text = text[told.end() :] if told else text
    # A line break within quotes belongs to a field. Without quotes, lines are rows.
    has_quotes = '"' in text
    lines = text.split("\n", 2 * MAX_ROWS)
    rest = lines.pop() if len(lines) > 2 * MAX_ROWS else ""
    sample = [line[:2000] for line in lines[:MAX_LINES]]
    shapes = [(separator, facts.blocks_of(sample, separator)) for separator in (told[1] if told else ",;\t|")]
    separator, blocks = max(shapes, key=lambda it: sum(size for _, size in it[1]))
    # Files of other programs that are called workbooks are often texts, and not all of them tables.
    if kind not in TEXTS and (not blocks or NO_TABLE.search("\n".join(sample))):
        raise NoSummary
    if not blocks and not told:
        separator = "\t" if "\t" in sample[0] else ";" if ";" in sample[0] else ","
    csv.field_size_limit(MAX_TEXT)
    rows = csv.reader(io.StringIO(text) if has_quotes else lines, delimiter=separator)
    some = list(itertools.islice(rows, MAX_ROWS))
    start, width = longest_block(some)
    table = [row for row in some[start:] if row]
    if not table:
        raise NoSummary
    count = min(width, MAX_COLUMNS)
    table = table[: max(20, min(MAX_ROWS, MAX_CELLS // count)) + 1]
    table[0] = table[0] + [""] * (count - len(table[0]))
    columns = [Texts(values) for values in itertools.islice(itertools.zip_longest(*table, fillvalue=""), count)]
    numbers = Numbers(columns, separator)
    first = 0 if len(table) > 1 and looks_like_a_row(columns, numbers) else 1
    if not first:
        for texts in columns:
            texts.add_first()
        numbers = Numbers(columns, separator)
    if has_quotes:
        records = sum(1 for row in itertools.chain(some[start:], rows) if row)
    else:
        before = sum(1 for row in some[:start] if row)
        records = len(lines) - lines.count("") - before + count_lines(rest)
    found = {
        "kind": TEXTS.get(kind, "csv"),
        "encoding": encoding,
        "separator": separator,
        "rows": max(0, records - first),
        "at_least": not whole,
        "looked_at": len(table) - first,
        "header": bool(first),
        "header_line": 1 + bool(told) + lines_before(text, separator, start),
        "columns": [texts.column(*found) for texts, found in zip(columns, numbers.kinds)],
        "more_columns": width - len(columns),
    }
    if numbers.decimal == "," and numbers.has_fractions:
        found["decimal"] = ","
    if numbers.thousands:
        found["thousands"] = numbers.thousands
    return found


# A table does not begin with these: marks of HTML, control characters, bytes that are no characters.
NO_TABLE = re.compile(r"\A\s*<|[\x01-\x08\x0e-\x1f\ufffd]")


def count_lines(text):
    """The number of lines that are not empty."""
    if not text.startswith("\n") and "\n\n" not in text:
        return text.count("\n") + bool(text and not text.endswith("\n"))
    return len(list(filter(None, text.split("\n"))))


def lines_before(text, separator, records):
    """The number of lines before a record."""
    import csv

    reader = csv.reader(io.StringIO(text), delimiter=separator)
    for _ in itertools.islice(reader, records):
        pass
    return reader.line_num


def longest_block(rows):
    """Returns where the longest run of rows with the same number of fields begins, and that number."""
    best = at = size = 0
    width = most = 0
    for number, row in enumerate(rows):
        if len(row) == width:
            size += 1
        elif row:
            at, size, width = number, 1, len(row)
        if size > best and width > 1:
            best, start, most = size, at, width
    # A table whose rows have several lengths begins with its first line.
    if best < 2 or best * 2 < len(rows):
        return 0, max(map(len, rows), default=0)
    return start, most


class Texts:
    """A column of texts, of which the first may be the header."""

    def __init__(self, values):
        values = list(map(str.strip, values))
        self.first, self.name = values[0], values.pop(0)
        found = dict.fromkeys(values)
        gone = [value for value in MISSING if value in found]
        self.missing = sum(map(values.count, gone))
        for value in gone:
            del found[value]
        # Different values, without missing ones.
        self.distinct = list(found)

    def add_first(self):
        """Makes the first text a value: the column has no header."""
        self.name = ""
        if self.first in MISSING:
            self.missing += 1
        else:
            self.distinct = list(dict.fromkeys([self.first, *self.distinct]))

    def column(self, kind, is_unsure):
        return column(self.name, kind, self.missing, self.distinct, is_unsure)


def looks_like_a_row(columns, numbers):
    """True if the first row is no header: all its cells have the types of their columns, and not all are texts."""
    typed = False
    for texts, (kind, _) in zip(columns, numbers.kinds):
        name = texts.name
        if kind in ("text", "empty"):
            if kind == "text" and not name:
                return False
            continue
        if name in MISSING:
            continue
        if (number_kind([name], numbers.decimal)[0] or kind_of_texts([name])[0]) not in (kind, "integer"):
            return False
        if YEAR.fullmatch(name) and not all(map(YEAR.fullmatch, texts.distinct)):
            return False
        typed = True
    return typed


YEAR = re.compile("(19|20)[0-9]{2}")
CLOCK = r"[T ]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?:Z|[+-]\d{2}:?\d{2})?"
DATE = re.compile(r"(?:\d{4}-\d{1,2}-\d{1,2}|\d{4}/\d{1,2}/\d{1,2}|\d{4}\.\d{1,2}\.\d{1,2})(?P<clock>" + CLOCK + ")?")
OTHER_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(?:\d{4}|\d{2})(?P<clock>" + CLOCK + ")?")
TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?")
BOOLEANS = {"true", "false"}, {"yes", "no"}, {"ja", "nein"}, {"oui", "non"}, {"si", "no"}


def number_pattern(decimal, thousands):
    return re.compile(
        rf"[-+]?(?:(?P<plain>[0-9]+)|(?P<grouped>[0-9]{{1,3}}(?P<by>[{thousands}])[0-9]{{3}}(?:(?P=by)[0-9]{{3}})*))"
        rf"(?P<fraction>[{decimal}][0-9]+)?(?P<power>[eE][-+]?[0-9]{{1,3}})?"
        rf"|[-+]?[{decimal}][0-9]+"
    )


NUMBERS = {".": number_pattern(".", ",'  \u202f\u2019"), ",": number_pattern(",", ".'  \u202f\u2019")}


def many_numbers(decimal, thousands):
    """Patterns of lines, each an integer, or each a number, as most tables have them. They never go back."""
    whole = "(?:0|[1-9][0-9]{0,17})"
    grouped = rf"[0-9]{{1,3}}(?:[{thousands}][0-9]{{3}})++"
    either = f"{grouped}|{whole}"
    return (
        (re.compile(rf"(?:[-+]?{whole}\n)*+"), "integer", ""),
        (re.compile(rf"(?:[-+]?(?:{whole}|[0-9]*+[{decimal}][0-9]++)\n)*+"), "number", ""),
        (re.compile(rf"(?:[-+]?(?:{either})\n)*+"), "integer", thousands),
        (re.compile(rf"(?:[-+]?(?:(?:{grouped}|[0-9]*+)[{decimal}][0-9]++|{either})\n)*+"), "number", thousands),
    )


MANY_NUMBERS = {".": many_numbers(".", ","), ",": many_numbers(",", ".")}


def number_kind(values, decimal):
    """Returns whether all values are integers or numbers with this decimal separator, and what groups their digits."""
    if not values or not NUMBERS[decimal].fullmatch(values[0]):
        return None, ""
    text = "\n".join(values) + "\n"
    for pattern, kind, by in MANY_NUMBERS[decimal]:
        if pattern.fullmatch(text):
            return kind, by
    kind, by = "integer", ""
    for value in values:
        found = NUMBERS[decimal].fullmatch(value)
        if not found:
            return None, ""
        plain = found["plain"]
        if plain and not found["fraction"] and (len(plain) > 18 or len(plain) > 1 and plain[0] == "0"):
            return None, ""  # an identifier, such as a postal code
        if found["fraction"] or found["power"] or not plain and not found["grouped"]:
            kind = "number"
        by = found["by"] or by
    return kind, by


class Numbers:
    """The types of columns of texts, and how numbers are written in these."""

    def __init__(self, columns, separator):
        found = {decimal: [number_kind(texts.distinct, decimal) for texts in columns] for decimal in ".,"}
        votes = {}
        for decimal, kinds in found.items():
            numeric = [by for kind, by in kinds if kind]
            # A comma within a field of comma-separated text rather groups three digits than begins a fraction.
            is_english = decimal == "." and separator == ","
            votes[decimal] = len(numeric), is_english, numeric.count(""), decimal == "," and separator == ";"
        self.decimal = max(votes, key=votes.get)
        chosen, others = found[self.decimal], found["," if self.decimal == "." else "."]
        # One number that can be read in one way only shows how all are to be read.
        is_sure = separator == "," or any(
            (kind == "number" or by) and not other for (kind, by), (other, _) in zip(chosen, others)
        )
        self.has_fractions = any(kind == "number" for kind, _ in chosen)
        self.thousands = next((by for kind, by in chosen if by), "")
        self.kinds = []
        for texts, (kind, by), (_, other_by) in zip(columns, chosen, others):
            if kind:
                is_unsure = not is_sure and kind == "number" and not by and bool(other_by)
                self.kinds.append((kind, is_unsure and not any(map(ZERO.match, texts.distinct))))
            else:
                self.kinds.append(kind_of_texts(texts.distinct))


# No digits are grouped after a zero.
ZERO = re.compile("[-+]?0")


def kind_of_texts(values):
    """Returns the type of distinct texts that are no numbers, and whether the order of day and month is unknown."""
    if not values:
        return "empty", False
    if len(values) <= 2:
        lower = {value.lower() for value in values}
        if any(lower <= pair for pair in BOOLEANS):
            return "boolean", False
    if all(map(DATE.fullmatch, values)):
        return "datetime" if any(DATE.fullmatch(value)["clock"] for value in values) else "date", False
    if all(map(OTHER_DATE.fullmatch, values)):
        found = [OTHER_DATE.fullmatch(value) for value in values]
        day_first = any(date[2] == "." or int(date[1]) > 12 for date in found)
        month_first = any(int(date[3]) > 12 for date in found)
        is_unsure = not day_first and not month_first
        if any(date["clock"] for date in found):
            return "datetime", is_unsure
        if day_first and month_first:
            return "text", False
        return "date_day_first" if day_first else "date_month_first" if month_first else "date", is_unsure
    if all(map(TIME.fullmatch, values)):
        return "time", False
    return "text", False


def column(name, kind, missing, values, is_unsure=False):
    found = {
        "name": shown(name, MAX_NAME),
        "kind": kind,
        "missing": missing,
        "examples": [shown(value, MAX_EXAMPLE) for value in itertools.islice(values, EXAMPLES)],
    }
    return {**found, "unsure": True} if is_unsure else found


def shown(value, most):
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    text = " ".join(str(value)[: 4 * most].split())
    text = text.encode(errors="replace").decode()
    return text if len(text) <= most else text[: most - 1] + "\u2026"


# Values that have a type already: of JSON and workbooks


def typed_column(name, values):
    there = [value for value in values if not is_missing(value)]
    kinds = {kind_of(value) for value in there}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if kinds == {"date", "datetime"}:
        kinds = {"datetime"}
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "empty"
    texts, is_unsure = there, False
    if kind == "text":
        texts = list(dict.fromkeys(there))
        kind, is_unsure = kind_of_texts(texts)
        kind = kind if kind.startswith("date") else "text"
    examples = dict.fromkeys(shown(value, MAX_EXAMPLE) for value in texts[:50])
    return column(name, kind, len(values) - len(there), examples, is_unsure)


def is_missing(value):
    return value is None or value == "" or isinstance(value, float) and value != value


def kind_of(value):
    kind = type(value)
    if kind is Date:
        return "datetime" if value.has_clock else "date"
    names = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list", dict: "object", bytes: "binary"}
    return names.get(kind, "text")


class Date:
    """A day, perhaps with a time, as a workbook counts it."""

    def __init__(self, days):
        import datetime

        self.has_clock = days % 1 != 0
        moment = datetime.datetime(1899, 12, 30) + datetime.timedelta(seconds=round(days * 86400))
        self.text = str(moment if self.has_clock else moment.date())

    def __str__(self):
        return self.text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return str(other) == self.text


def typed_table(kind, names, values, **more):
    """The summary of rows of typed values."""
    count = min(len(names), MAX_COLUMNS)
    columns = [[row[at] if at < len(row) else None for row in values] for at in range(count)]
    return {
        "kind": kind,
        "looked_at": len(values),
        "columns": [typed_column(name, values) for name, values in zip(names, columns)],
        "more_columns": len(names) - count,
        **more,
    }


# JSON


def loads(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer of more digits than Python converts.
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits[:300]))


def of_json(text, kind, encoding, whole):
    if kind == "json":
        found = whole_json(text, encoding) if whole else first_of_array(text, encoding)
        if found:
            return found
    lines = [line for line in lines_of(text, whole).split("\n") if line and not line.isspace()]
    if kind == "json" and len(lines) < 2:
        raise NoSummary
    rows = [loads(line) for line in lines[:MAX_ROWS]]
    if not all(isinstance(row, (dict, list)) for row in rows):
        raise NoSummary
    return of_records("json_lines", encoding, rows, len(lines), not whole)


def whole_json(text, encoding):
    try:
        value = loads(text)
    except json.JSONDecodeError:
        return None
    if isinstance(value, list):
        return of_records("json", encoding, value[:MAX_ROWS], len(value), False)
    if isinstance(value, dict):
        # One array of records is what most interfaces return, with a few words about it.
        tables = [name for name, rows in value.items() if is_table(rows)]
        names = list(value)
        found = typed_table("json", names, [list(value.values())], encoding=encoding)
        if len(tables) == 1:
            rows = value[tables[0]]
            found = of_records("json", encoding, rows[:MAX_ROWS], len(rows), False)
            found["within"] = shown(tables[0], MAX_NAME)
        return found
    raise NoSummary


def is_table(rows):
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) for row in rows[:20])


def first_of_array(text, encoding):
    """The summary of an array of which only the start is there."""
    at = len(text) - len(text.lstrip())
    if text[at : at + 1] != "[":
        return None
    read, space = json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    rows, at = [], at + 1
    while True:
        at = space.match(text, at).end()
        try:
            row, at = read(text, at)
        except ValueError:
            break
        rows.append(row)
        if len(rows) >= 5 * MAX_ROWS:
            break
    if not rows:
        raise NoSummary
    return of_records("json", encoding, rows[:MAX_ROWS], len(rows), True)


def of_records(kind, encoding, rows, count, at_least):
    more = {"encoding": encoding, "rows": count, "at_least": at_least}
    if rows and all(isinstance(row, dict) for row in rows):
        names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
        rows = rows[: max(20, MAX_CELLS // max(1, min(len(names), MAX_COLUMNS)))]
        values = [[row.get(name) for name in names[:MAX_COLUMNS]] for row in rows]
        return typed_table(kind, names, values, **more)
    if rows and all(isinstance(row, list) for row in rows):
        width = max(map(len, rows))
        return typed_table(kind, [""] * width, rows, header=False, **more)
    return typed_table(kind, [""], [[row] for row in rows], header=False, **more)


# Workbooks


class Enough(Exception):
    """No more of a part is needed."""


def of_workbook(source):
    import posixpath
    import zipfile

    with zipfile.ZipFile(source) as book:
        relations = {}
        parse(book, "xl/_rels/workbook.xml.rels", {"Relationship": lambda it: relations.update({it.get("Id"): it})})
        sheets = []
        parse(book, "xl/workbook.xml", {"sheet": sheets.append})
        if not sheets:
            raise NoSummary
        paths = []
        for sheet in sheets[:MAX_SHEETS]:
            identity = next((value for name, value in sheet.items() if name.endswith(":id")), "")
            target = relations.get(identity, {}).get("Target", "")
            paths.append(posixpath.normpath(posixpath.join("/xl", target)).lstrip("/"))
        dates = date_styles(book)
        counts = [extent(book, path) for path in paths[1:]]
        first = Sheet(book, paths[0], dates, shared_texts(book))
    return of_sheet("xlsx", first.rows, first.last, first.whole, sheets, counts)


def of_sheet(kind, rows, last, whole, sheets, counts):
    """The summary of a workbook: `rows` are those of the first sheet by their numbers, of which `last` is the last."""
    rows = {number: there for number, row in rows.items() if (there := without_end(row))}
    if not rows and not whole:
        raise NoSummary
    start = header_of(list(rows.values()))
    line, table = list(rows)[start] if rows else 1, list(rows.values())[start:]
    first = table[0] if table else []
    header = all(is_missing(it) or isinstance(it, (str, Date)) or is_year(it) for it in first)
    names = [""] * max(map(len, table), default=0)
    if header:
        names[: len(first)] = ["" if is_missing(value) else str(value) for value in first]
        table = table[1:]
    count = len(table) if whole else max(len(table), last - line + (not header))
    more = {"rows": count, "header": header, "header_line": line, "at_least": not whole and not last}
    found = typed_table(kind, names, table, **more)
    entries = [{"name": shown(sheet.get("name", ""), MAX_NAME)} for sheet in sheets[:MAX_SHEETS]]
    for entry, rows in zip(entries, [count, *counts]):
        if rows is not None:
            entry["rows"] = rows
    return {**found, "sheets": entries, "more_sheets": len(sheets) - len(entries)}


def without_end(row):
    """A row without the missing cells at its end."""
    size = len(row)
    while size and is_missing(row[size - 1]):
        size -= 1
    return row[:size]


def header_of(rows):
    """Returns where the table of a sheet begins, below titles: at the first row that is as wide as most, and not nearly
    empty. Rows do not end alike, as in a text, if the last cells of some are missing."""
    sizes = [(len(row), sum(not is_missing(value) for value in row)) for row in rows]
    wide = [size for size in sizes if size[1] > 1]
    if wide:
        width, filled = (sorted(numbers)[len(wide) // 2] for numbers in zip(*wide))
        start = next(at for at, size in enumerate(sizes) if size[0] >= width and size[1] * 2 >= filled)
        if 2 * sum(size[1] > 1 for size in sizes[start:]) >= len(sizes) - start:
            return start
    return 0


def is_year(value):
    return isinstance(value, int) and not isinstance(value, bool) and 1900 <= value <= 2100


def parse(book, path, starts, ends=None, text=None, most=MAX_INFLATED):
    """Parses the start of a part of a workbook. Returns whether that is all of it."""
    from xml.parsers import expat

    parser = expat.ParserCreate()

    def start(name, attributes):
        if found := starts.get(name.rpartition(":")[2]):
            found(attributes)

    def refuse(*_):
        raise NoSummary  # no workbook has entities of its own

    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = refuse
    if ends:
        parser.EndElementHandler = lambda name: ends.get(name.rpartition(":")[2], bool)()
    if text:
        parser.CharacterDataHandler = text
    try:
        part = book.open(path)
    except KeyError:
        return True
    with part:
        try:
            while most > 0 and (piece := part.read(min(most, 1 << 16))):
                most -= len(piece)
                parser.Parse(piece, False)
        except Enough:
            return False
    return most > 0


REFERENCE = re.compile(r"([A-Z]{0,3})([0-9]{1,7})")


def extent(book, path):
    """The number of rows of a sheet below its first, as the sheet states it at its start."""
    found = []

    def dimension(attributes):
        found.append(attributes.get("ref", ""))
        raise Enough

    def stop(_):
        raise Enough

    parse(book, path, {"dimension": dimension, "sheetData": stop}, most=1 << 16)
    ends = [REFERENCE.fullmatch(end) for end in found[0].split(":")] if found else []
    return max(0, int(ends[1][2]) - int(ends[0][2])) if len(ends) == 2 and all(ends) else None


BUILT_IN_DATES = {*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)}


def date_styles(book):
    """Which styles of cells are dates."""
    formats, styles, within = {}, [], []

    def is_date(number):
        text = re.sub(r'"[^"]*"|\\.|\[[^\]]*\]', "", formats.get(number, ""))
        return number in BUILT_IN_DATES or bool(re.search("[ymdhs]", text.lower()))

    def number_of(attributes, name):
        digits = attributes.get(name, "")
        return int(digits) if digits.isdigit() and len(digits) < 10 else -1

    starts = {
        "numFmt": lambda it: formats.update({number_of(it, "numFmtId"): it.get("formatCode", "")[:200]}),
        "cellXfs": lambda _: within.append(1),
        "xf": lambda it: within and styles.append(number_of(it, "numFmtId")),
    }
    parse(book, "xl/styles.xml", starts, {"cellXfs": within.clear})
    return [is_date(number) for number in styles]


def shared_texts(book):
    texts, pieces = [], []
    within = []

    def end():
        texts.append("".join(pieces)[: 4 * MAX_EXAMPLE])
        pieces.clear()

    starts = {"t": within.append}
    ends = {"t": within.clear, "si": end}
    parse(book, "xl/sharedStrings.xml", starts, ends, lambda text: within and pieces.append(text))
    return texts


class Sheet:
    """The first rows of a sheet."""

    def __init__(self, book, path, dates, texts):
        self.dates, self.texts = dates, texts
        # The cells of rows by their numbers, and the numbers of the last and of the present one.
        self.rows, self.last, self.number = {}, 0, 0
        self.pieces, self.within, self.cell = [], [], {}
        starts = {"row": self.row, "c": self.start_cell, "v": self.within.append, "t": self.within.append}
        starts["dimension"] = self.dimension
        ends = {"c": self.end_cell, "v": self.within.clear, "t": self.within.clear}
        self.whole = parse(book, path, starts, ends, lambda text: self.within and self.pieces.append(text))

    def dimension(self, attributes):
        last = REFERENCE.fullmatch(attributes.get("ref", "").rpartition(":")[2])
        if last and ":" in attributes["ref"]:
            self.last = int(last[2])

    def row(self, attributes):
        if len(self.rows) > MAX_SHEET_ROWS:
            raise Enough
        number = attributes.get("r", "")
        self.number = int(number) if number.isdecimal() and len(number) < 8 else self.number + 1
        self.rows[self.number] = []

    def start_cell(self, attributes):
        self.cell = attributes

    def end_cell(self):
        text = "".join(self.pieces)
        self.pieces.clear()
        if not self.rows:
            return
        row = self.rows[self.number]
        place = REFERENCE.fullmatch(self.cell.get("r", ""))
        at = number_of_column(place[1]) if place and place[1] else len(row)
        if at > MAX_COLUMNS + 10_000:
            return
        while len(row) < at:
            row.append(None)
        row.append(self.value(text))

    def value(self, text):
        kind = self.cell.get("t", "n")
        if not text:
            return None
        if kind == "s":
            return self.texts[int(text)] if text.isdigit() and int(text) < len(self.texts) else "\u2026"
        if kind == "b":
            return text == "1"
        if kind != "n":
            return text
        number = float(text)
        style = self.cell.get("s", "")
        if style.isdigit() and int(style) < len(self.dates) and self.dates[int(style)] and 0 <= number < 2958466:
            return Date(number)
        return int(number) if number.is_integer() and abs(number) < 1e15 else number


def number_of_column(letters):
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number - 1


def of_old_workbook(source):
    """A workbook of Excel before 2007, which only its library can read."""
    if source.size > MAX_TEXT:
        raise NoSummary
    import xlrd

    book = xlrd.open_workbook(file_contents=source.part(0, source.size), on_demand=True, logfile=io.StringIO())
    sheets = [{"name": name} for name in book.sheet_names()]
    first = book.sheet_by_index(0)
    rows = {}
    for at in range(min(first.nrows, MAX_SHEET_ROWS)):
        cells = first.row(at)[: MAX_COLUMNS + 1000]
        rows[at + 1] = [value_of_old_cell(cell, book) for cell in cells]
    return of_sheet("xls", rows, first.nrows, first.nrows <= MAX_SHEET_ROWS, sheets, [])


def value_of_old_cell(cell, book):
    if cell.ctype == 3:
        return Date(cell.value + (1462 if book.datemode else 0))
    if cell.ctype == 4:
        return bool(cell.value)
    if cell.ctype == 2 and cell.value.is_integer():
        return int(cell.value)
    return cell.value if cell.ctype in (1, 2) else None


# Parquet: the footer is a structure in Thrift's compact protocol.


class Thrift:
    def __init__(self, data):
        self.data, self.at, self.left = data, 0, 200_000

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise NoSummary

    def zigzag(self):
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self):
        """The number and the type of each field of a structure. The caller reads or skips its value."""
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            yield number, head & 15

    def sequence(self):
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.data):
            raise NoSummary
        return count, head & 15

    def value(self, kind, depth=0):
        self.left -= 1
        if self.left < 0 or depth > 20:
            raise NoSummary
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 7:
            self.at += 8
            return None
        if kind == 8:
            length = self.varint()
            self.at += length
            if self.at > len(self.data):
                raise NoSummary
            return self.data[self.at - length : self.at]
        if kind in (9, 10):
            count, of = self.sequence()
            if of in (1, 2):
                return [self.byte() == 1 for _ in range(count)]
            return [self.value(of, depth + 1) for _ in range(count)]
        if kind == 12:
            return {number: self.value(of, depth + 1) for number, of in self.fields()}
        raise NoSummary


def of_parquet(source):
    size = source.size
    if size < 12:
        raise NoSummary
    end = source.part(size - 8, 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or not 0 < length <= min(MAX_FOOTER, size - 12):
        raise NoSummary
    footer = Thrift(source.part(size - 8 - length, length))
    schema, rows, groups, partial = [], 0, [], False
    for number, kind in footer.fields():
        if number == 2:
            schema = footer.value(kind)
        elif number == 3:
            rows = footer.value(kind)
        elif number == 4:
            count, of = footer.sequence()
            partial = count > 1 and length > 64 << 10
            groups = [footer.value(of) for _ in range(1 if partial else count)]
        else:
            footer.value(kind)
        if number >= 4:
            break
    if not schema or not isinstance(rows, int) or rows < 0:
        raise NoSummary
    columns = [Leaf(*found) for found in children(schema)]
    chunks = [[chunk.get(3, {}) for chunk in group.get(1, [])] for group in groups]
    for column_ in columns:
        column_.count(chunks, rows, partial)
    shown_columns = columns[:MAX_COLUMNS]
    values = first_values(source, [it.name for it in shown_columns])
    found = []
    for it in shown_columns:
        entry = column(it.name, it.kind, 0, dict.fromkeys(values.get(it.name, it.bounds)))
        if it.missing is None:
            del entry["missing"]
        else:
            entry["missing"] = it.missing
        found.append(entry)
    return {"kind": "parquet", "rows": rows, "columns": found, "more_columns": len(columns) - len(found)}


def children(schema):
    """The columns of a table: their elements of the schema, and the index of the chunk of each, if it is one."""
    at, leaf = 1, 0
    for _ in range(min(schema[0].get(5, 0), len(schema))):
        if at >= len(schema):
            raise NoSummary
        element, end = schema[at], at + 1
        left, leaves = element.get(5, 0), 0 if element.get(5) else 1
        while left > 0 and end < len(schema):
            left += schema[end].get(5, 0) - 1
            leaves += not schema[end].get(5)
            end += 1
        yield element, leaf if not element.get(5) else None
        leaf += leaves
        at = end


KINDS = {0: "boolean", 1: "integer", 2: "integer", 3: "datetime", 4: "number", 5: "number"}
CONVERTED = {0: "text", 4: "text", 5: "number", 6: "date", 7: "time", 8: "time", 9: "datetime", 10: "datetime", 19: "text"}
LOGICAL = {1: "text", 4: "text", 5: "number", 6: "date", 7: "time", 8: "datetime", 12: "text", 14: "text"}


class Leaf:
    """A column of Parquet."""

    def __init__(self, element, chunk):
        self.name = bytes(element.get(4, b"")).decode(errors="replace")
        self.type, self.chunk, self.missing, self.bounds = element.get(1), chunk, None, []
        logical = next(iter(element.get(10) or {}), None)
        if chunk is None or element.get(3) == 2:
            self.kind = "list" if logical == 3 or element.get(6) == 3 or element.get(3) == 2 else "object"
        else:
            physical = KINDS.get(self.type, "binary")
            self.kind = LOGICAL.get(logical) or CONVERTED.get(element.get(6)) or physical

    def count(self, chunks, rows, partial):
        """Counts the missing values, and takes the least and the largest value as examples, if these are known."""
        statistics = []
        for group in chunks:
            if self.chunk is None or self.chunk >= len(group):
                return
            statistics.append(group[self.chunk].get(12) or {})
        counts = [it.get(3) for it in statistics]
        if not partial and all(isinstance(count, int) for count in counts):
            self.missing = min(sum(counts), rows)
        if statistics:
            bounds = statistics[0].get(6), statistics[0].get(5)
            self.bounds = [value for bound in bounds if (value := self.plain(bound)) is not None]

    def plain(self, bound):
        if not isinstance(bound, bytes):
            return None
        if self.kind == "text":
            return bound.decode(errors="replace")
        form = {1: "<i", 2: "<q", 4: "<f", 5: "<d"}.get(self.type)
        if self.kind in ("integer", "number", "date") and form and len(bound) == struct.calcsize(form):
            value = struct.unpack(form, bound)[0]
            if self.kind == "date":
                return str(Date(value + 25569)) if -719162 < value < 2932896 else None
            return value or abs(value)  # the least value of a column with zeros is -0.0
        return None


def first_values(source, names):
    """The first values of columns, if the library is loaded."""
    if "pyarrow" not in sys.modules:
        return {}
    try:
        from pyarrow import parquet

        file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 16)
        plain = [name for name in names[:12] if "." not in name]
        batches = file.iter_batches(batch_size=50, row_groups=[0], columns=plain, use_threads=False)
        found = next(batches, None)
        values = {} if found is None else found.slice(0, 50).to_pydict()
        return {name: [shown(value, MAX_EXAMPLE) for value in of if value is not None] for name, of in values.items()}
    except Exception:
        return {}


# The process of a summary


def report_of(number, name, encoding, facts):
    """The summary as JSON. Empty if there is none."""
    try:
        found = of_file(number, name, encoding, facts)
        while len(packed := json.dumps(found, ensure_ascii=False).encode()) > MAX_REPORT and found["columns"]:
            found["more_columns"] += len(found["columns"]) - len(found["columns"]) // 2
            del found["columns"][len(found["columns"]) // 2 :]
        return packed if len(packed) <= MAX_REPORT else b""
    except BaseException:
        return b""


def serve(link, number, request, facts, pages):
    """Answers a request in a process of its own, which never returns from here. `pages` draws pages (page.py).

        here  --- the process id ------> agent
        agent --- one byte ------------> here   begin
        here  --- pieces of a report --> agent
        here  --- an empty one --------> agent   no more; without a report there is none
    """
    page = request.get("page")
    try:
        if page is None:
            limit(1)
        link.send(struct.pack("=i", os.getpid()))
        if link.recv(1) == b"\1":
            if page is None:
                report = report_of(number, request["name"], request["encoding"], facts)
            else:
                # LibreOffice writes a file, and has limits of its own.
                number, problem = pages.as_pdf(number, page)
                limit(PAGE_SECONDS)
                report = pages.report_of(number, page, problem)
            for start in range(0, len(report), PIECE):
                link.send(report[start : start + PIECE])
            link.send(b"")
    finally:
        os._exit(0)


def limit(seconds):
    """Limits this process: 256 MB more of memory, its processor time, no files. Its priority stays: a caller waits for it,
    and no program runs meanwhile."""
    import resource

    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    for limit, most in (
        (resource.RLIMIT_AS, used + (256 << 20)),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
