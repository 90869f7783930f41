from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

document = SimpleDocTemplate("report.pdf", pagesize=A4, invariant=1)
document.build([Paragraph("A title", getSampleStyleSheet()["Title"]), Table([["a", "b"], [1, 2]])])
from reportlab.pdfgen.canvas import Canvas

canvas = Canvas("drawn.pdf", invariant=1)
canvas.drawString(100, 100, "drawn")
canvas.save()
