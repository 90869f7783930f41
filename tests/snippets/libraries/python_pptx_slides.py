import io

from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

slides = Presentation()
slide = slides.slides.add_slide(slides.slide_layouts[5])
slide.shapes.title.text = "Sales"
data = CategoryChartData()
data.categories = ["Jan", "Feb"]
data.add_series("2026", (3, 4))
slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(2), Inches(6), Inches(4), data)
written = io.BytesIO()
slides.save(written)
again = Presentation(written)
print([(shape.has_text_frame and shape.text_frame.text, shape.has_chart) for shape in again.slides[0].shapes])
