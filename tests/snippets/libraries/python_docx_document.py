import io

import matplotlib.pyplot as plt
from docx import Document
from docx.shared import Inches

picture = io.BytesIO()
plt.plot([1, 2])
plt.savefig(picture, format="png")
plt.close()
document = Document()
document.add_heading("Report", level=1)
document.add_paragraph("Sales rose.").add_run(" A lot.").bold = True
table = document.add_table(rows=1, cols=2, style="Light Grid Accent 1")
table.rows[0].cells[0].text = "Jan"
document.add_picture(picture, width=Inches(4))
written = io.BytesIO()
document.save(written)
again = Document(written)
print([paragraph.text for paragraph in again.paragraphs], again.tables[0].cell(0, 0).text, len(again.inline_shapes))
