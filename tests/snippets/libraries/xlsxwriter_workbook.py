import io

import pandas as pd
import xlsxwriter

written = io.BytesIO()
with pd.ExcelWriter(written, engine="xlsxwriter") as writer:
    pd.DataFrame({"month": ["Jan", "Feb"], "sales": [3, 4]}).to_excel(writer, sheet_name="Sales", index=False)
    chart = writer.book.add_chart({"type": "column"})
    chart.add_series({"values": "=Sales!$B$2:$B$3"})
    writer.sheets["Sales"].insert_chart("D2", chart)
    writer.sheets["Sales"].set_column("A:A", 20, writer.book.add_format({"bold": True}))
print(pd.read_excel(written).to_dict("list"))
plain = io.BytesIO()
with xlsxwriter.Workbook(plain, {"in_memory": True}) as book:
    book.add_worksheet("One").write(0, 0, 1.5)
print(pd.ExcelFile(plain).sheet_names)
