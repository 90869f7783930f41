import io

from openpyxl import Workbook, load_workbook
from openpyxl.chart import BarChart, Reference
from openpyxl.styles import Font

book = Workbook()
sheet = book.active
for row in [("month", "sales"), ("Jan", 3), ("Feb", 4)]:
    sheet.append(row)
sheet["B4"] = "=SUM(B2:B3)"
sheet["A1"].font = Font(bold=True)
chart = BarChart()
chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=3), titles_from_data=True)
sheet.add_chart(chart, "D2")
written = io.BytesIO()
book.save(written)
again = load_workbook(written).active
print(again["B4"].value, again["A1"].font.bold, again.dimensions, len(again._charts))
