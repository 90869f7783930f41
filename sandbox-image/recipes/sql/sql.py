#!/opt/venv/bin/python -Iu
"""Runs the statements of a file of SQL with DuckDB, and prints the result of each query as a table.

    sql FILE

Names of files are tables (FROM 'sales.csv'), and COPY (...) TO 'result.parquet' writes a file. Tables are gone at the
end, except those of a database in a file (ATTACH 'work.duckdb'; USE work). The first statement that fails ends the
program with exit code 1.
"""

import sys
from decimal import Decimal
from unicodedata import combining, east_asian_width

# Rows and columns of a result, and characters of a value or of a statement in an error, that are printed.
MAX_ROWS, MAX_COLUMNS, MAX_VALUE, MAX_STATEMENT = 50, 40, 200, 300

# Temporary files do not belong among the user's. An extension that is missing is an error that says so: none can be
# fetched.
OPTIONS = {"temp_directory": "/tmp/duckdb", "autoinstall_known_extensions": "false"}

NO_EXTENSIONS = "No extension can be installed here. Convert the file with Python (pandas, polars), then query the copy."


def main(path):
    import duckdb

    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: {error}"
    connection = duckdb.connect(config=OPTIONS)
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        return f"No statement was run, because the text cannot be parsed.\n{error}"
    for number, statement in enumerate(statements, 1):
        try:
            show(connection.execute(statement), statement.type)
        except duckdb.Error as error:
            advice = f"\n{NO_EXTENSIONS}" if "xtension" in str(error) else ""
            query = cut(statement.query.strip(), MAX_STATEMENT)
            return f"Statement {number} of {len(statements)} failed: {query}\n{error}{advice}"
    return None


def show(result, kind):
    """Prints the rows of a query's result; of a statement that changes rows, their number; of EXPLAIN, the plan."""
    names = [name for name, *_ in result.description or ()]
    if not names or names == ["Success"]:
        return
    rows = result.fetchmany(MAX_ROWS + 1)
    if kind.name == "EXPLAIN":
        print(*(row[-1] for row in rows))
    elif kind.name != "SELECT" and names == ["Count"]:
        if rows:
            print(f"({counted(rows[0][0])})\n")
    else:
        print_table(names[:MAX_COLUMNS], [row[:MAX_COLUMNS] for row in rows[:MAX_ROWS]])
        if len(names) > MAX_COLUMNS:
            print(f"({len(names) - MAX_COLUMNS} more columns)")
        if len(rows) > MAX_ROWS:
            print(f"(the first {MAX_ROWS} rows; COPY (...) TO 'result.csv' writes all)\n")
        else:
            print(f"({counted(len(rows))})\n")


def counted(rows):
    return f"{rows} row{'' if rows == 1 else 's'}"


def print_table(names, rows):
    numbers = [all(type(row[at]) in (int, float, Decimal, type(None)) for row in rows) for at in range(len(names))]
    cells = [[text_of(value) for value in row] for row in (names, *rows)]
    widths = [max(map(width, column)) for column in zip(*cells)]
    lines = [" | ".join(map(padded, row, widths, numbers)).rstrip() for row in cells]
    print(lines[0], "-+-".join("-" * count for count in widths), *lines[1:], sep="\n")


def text_of(value):
    """A value in one line."""
    if value is None:
        return "NULL"
    text = str(value).lower() if isinstance(value, bool) else cut(str(value), MAX_VALUE)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def cut(text, most):
    return text if len(text) <= most else f"{text[:most]}…"


def padded(text, columns, is_number):
    space = " " * (columns - width(text))
    return space + text if is_number else text + space


def width(text):
    """The number of columns in which a terminal shows a text."""
    return sum((east_asian_width(c) in "WF") + 1 for c in text if not combining(c))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
