import os

import openpyxl
import pandas as pd

with pd.ExcelWriter("book.xlsx") as writer:
    pd.DataFrame({"a": [1, 2], "b": ["x", None]}).to_excel(writer, sheet_name="one", index=False)
    pd.DataFrame({"c": [1.5]}).to_excel(writer, sheet_name="two")
print(pd.read_excel("book.xlsx", sheet_name=None))
book = openpyxl.load_workbook("book.xlsx")
print(book.sheetnames, book["one"]["A1"].font.bold, [[cell.value for cell in row] for row in book["one"]])
os.remove("book.xlsx")
