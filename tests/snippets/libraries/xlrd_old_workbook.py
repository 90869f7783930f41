import io
import struct

import pandas as pd
import xlrd


def record(kind, content):
    return struct.pack("<HH", kind, len(content)) + content


def number(row, column, value):
    return record(3, struct.pack("<HH3xd", row, column, value))


def label(row, column, text):
    return record(4, struct.pack("<HH3xB", row, column, len(text)) + text.encode())


# A worksheet as Excel 2 wrote it.
cells = label(0, 0, "month") + label(0, 1, "sales") + label(1, 0, "Jan") + number(1, 1, 3.5)
book = record(9, struct.pack("<HH", 7, 16)) + record(66, b"\xe4\x04") + cells + record(10, b"")
sheet = xlrd.open_workbook(file_contents=book).sheet_by_index(0)
print(sheet.nrows, sheet.row_values(0), sheet.cell_value(1, 1))
print(pd.read_excel(io.BytesIO(book)).to_dict("list"))
