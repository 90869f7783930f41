import io

from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas

drawn = io.BytesIO()
canvas = Canvas(drawn, invariant=1)
for text in "first page", "second page":
    canvas.drawString(100, 700, text)
    canvas.showPage()
canvas.save()
reader = PdfReader(drawn)
print(len(reader.pages), [page.extract_text().strip() for page in reader.pages])
writer = PdfWriter()
writer.add_page(reader.pages[1])
writer.pages[0].rotate(90)
second = io.BytesIO()
writer.write(second)
print(PdfReader(second).pages[0].extract_text().strip(), PdfReader(second).pages[0].rotation)
