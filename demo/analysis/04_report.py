"""report.pdf, for somebody who was not there: the charts, KPI tables, what to do next and how the figures were made.

Takes the cleaned rows, what was found wrong with the file, and the sentences that came with the charts.
"""

import json
import re
from pathlib import Path
from xml.sax.saxutils import escape

import pandas as pd
from matplotlib import font_manager
from reportlab.lib.colors import HexColor, white
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.ttfonts import TTFError, TTFont
from reportlab.platypus import (
    BaseDocTemplate,
    Frame,
    Image,
    KeepTogether,
    NextPageTemplate,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)

INK, MUTED, LINE, PALE = HexColor("#1F2D3A"), HexColor("#66758A"), HexColor("#D5DBE3"), HexColor("#F4F6F9")
ACCENT, GOOD, BAD = HexColor("#2A5B8C"), HexColor("#2F7A5E"), HexColor("#C8443A")
WIDTH, HEIGHT = A4
MARGIN = 20 * mm
BAND = 62 * mm
TEXT_WIDTH = WIDTH - 2 * MARGIN


def embed(name, family, weight="normal"):
    """Whether the family is installed, with outlines that reportlab can embed (TrueType, not CFF)."""
    try:
        path = font_manager.findfont(
            font_manager.FontProperties(family=family, weight=weight), fallback_to_default=False
        )
        pdfmetrics.registerFont(TTFont(name, path))
    except (ValueError, TTFError):
        return False
    return True


def text_font():
    """As in the charts. DejaVu Sans comes with matplotlib, so one of them is always there."""
    for family in ("Noto Sans", "Liberation Sans", "DejaVu Sans"):
        if embed("Text", family) and embed("Text-Bold", family, "bold"):
            pdfmetrics.registerFontFamily(
                "Text", normal="Text", bold="Text-Bold", italic="Text", boldItalic="Text-Bold"
            )
            return
    raise SystemExit("no text font found")


def japanese_font():
    """The name of a font for the Japanese region: an embedded one, or else the one that PDF readers bring along."""
    for family in ("WenQuanYi Micro Hei", "Droid Sans Fallback", "Noto Sans JP"):
        if embed("Japanese", family):
            pdfmetrics.registerFontFamily("Japanese", *["Japanese"] * 4)
            return "Japanese"
    pdfmetrics.registerFont(UnicodeCIDFont("HeiseiKakuGo-W5"))
    return "HeiseiKakuGo-W5"


text_font()
JAPANESE = japanese_font()


def markup(value):
    """Text for a Paragraph: escaped, and with a font for the letters that the text font lacks."""
    return re.sub(r"[\u3040-\u30ff\u4e00-\u9fff]+", rf'<font name="{JAPANESE}">\g<0></font>', escape(str(value)))


def style(name, **options):
    return ParagraphStyle(
        name,
        **{"fontName": "Text", "fontSize": 9.5, "leading": 14, "textColor": INK, "bulletFontName": "Text", **options},
    )


BULLET = style("bullet", leftIndent=13, bulletIndent=0, spaceAfter=3.5)
HEADING = style("heading", fontName="Text-Bold", fontSize=17, leading=21, spaceAfter=3)
LEAD = style("lead", textColor=MUTED, fontSize=10, leading=14, spaceAfter=10)
TERM = style("term", spaceAfter=3.5)
SUBHEADING = style("subheading", fontName="Text-Bold", fontSize=11.5, leading=15, spaceBefore=11, spaceAfter=4)
CAPTION = style("caption", fontSize=8.5, leading=12, textColor=MUTED, spaceBefore=2, spaceAfter=9)
CELL = style("cell", fontSize=9, leading=11.5)
NUMBER = style("number", fontSize=9, leading=11.5, alignment=TA_RIGHT)
HEAD = style("head", fontName="Text-Bold", fontSize=8.5, leading=11, textColor=white)
HEAD_NUMBER = style("head-number", fontName="Text-Bold", fontSize=8.5, leading=11, textColor=white, alignment=TA_RIGHT)


df = pd.read_pickle("clean.pkl")
findings = json.loads(Path("findings.json").read_text(encoding="utf-8"))
issues = json.loads(Path("quality.json").read_text(encoding="utf-8"))


def sums(by):
    return with_ratios(df.groupby(by)[["spend", "impressions", "clicks", "conversions", "revenue"]].sum())


def with_ratios(total):
    return total.assign(
        roas=total["revenue"] / total["spend"],
        cpa=total["spend"] / total["conversions"],
        ctr=total["clicks"] / total["impressions"],
        cvr=total["conversions"] / total["clicks"],
        share=total["revenue"] / df["revenue"].sum(),
    )


channels = sums("channel").sort_values("revenue", ascending=False)
regions = sums("region").sort_values("revenue", ascending=False)
everything = with_ratios(channels.sum().to_frame("All").T)
total = everything.loc["All"]
PERIOD = f"{df['date'].min():%B %Y} to {df['date'].max():%B %Y}"


def money(value):
    if abs(value) >= 1e6:
        return f"${value / 1e6:,.2f}M"
    return f"${value / 1e3:,.0f}K" if abs(value) >= 1e4 else f"${value:,.2f}"


def figure(number, width=TEXT_WIDTH):
    """A chart with its number and what can be read from it."""
    chart = findings["charts"][number - 1]
    pixels = ImageReader(chart["file"]).getSize()
    inner = width - 4
    image = Image(chart["file"], width=inner, height=inner * pixels[1] / pixels[0])
    sides = [(f"{side}PADDING", (0, 0), (-1, -1), 2) for side in ("LEFT", "RIGHT", "TOP", "BOTTOM")]
    frame = Table([[image]], style=[("BOX", (0, 0), (-1, -1), 0.6, LINE), *sides])
    caption = ParagraphStyle("figure", CAPTION, leftIndent=(TEXT_WIDTH - width) / 2)
    return KeepTogether([frame, Paragraph(f"<b>Figure {number}.</b> {markup(chart['reading'])}", caption)])


def data_table(header, rows, widths, total_row=False):
    """A table whose first column is text and whose other columns are figures; the last row may be the sum."""

    def line(values, first, other):
        return [
            value if isinstance(value, Paragraph) else Paragraph(markup(value), other if place else first)
            for place, value in enumerate(values)
        ]

    cells = [line(header, HEAD, HEAD_NUMBER), *(line(row, CELL, NUMBER) for row in rows)]
    look = [
        ("BACKGROUND", (0, 0), (-1, 0), INK),
        ("ROWBACKGROUNDS", (0, 1), (-1, -1), [white, PALE]),
        ("LINEBELOW", (0, 1), (-1, -1), 0.4, LINE),
        ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
        ("TOPPADDING", (0, 0), (-1, -1), 3.6),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 4.2),
    ]
    if total_row:
        cells[-1] = [Paragraph(f"<b>{cell.text}</b>", cell.style) for cell in cells[-1]]
        look += [("LINEABOVE", (0, -1), (-1, -1), 1, INK), ("BACKGROUND", (0, -1), (-1, -1), white)]
    return Table(cells, colWidths=[width * TEXT_WIDTH for width in widths], style=TableStyle(look), repeatRows=1)


def coloured(text, colour):
    return f"<font color='#{colour.hexval()[2:]}'><b>{text}</b></font>"


def roas_cell(value):
    colour = GOOD if value > total["roas"] else BAD if value < 1 else INK
    return Paragraph(coloured(f"{value:.2f}", colour), NUMBER)


def kpi_rows(table):
    return [
        [
            name,
            f"${row['spend']:,.0f}",
            f"${row['revenue']:,.0f}",
            roas_cell(row["roas"]),
            f"${row['cpa']:,.2f}",
            f"{row['ctr']:.2%}",
            f"{row['cvr']:.2%}",
            f"{row['share']:.0%}",
        ]
        for name, row in table.iterrows()
    ]


KPI_HEADER = ["Spend", "Revenue", "ROAS", "CPA", "CTR", "CVR", "Share"]
KPI_WIDTHS = [0.19, 0.155, 0.165, 0.09, 0.11, 0.09, 0.09, 0.11]


def headline_figures():
    tiles = [
        (money(total["revenue"]), "revenue"),
        (money(total["spend"]), "ad spend"),
        (f"{total['roas']:.2f}", "return on ad spend"),
        (f"{total['conversions']:,.0f}", "orders"),
        (f"${total['cpa']:.2f}", "cost of an order"),
    ]
    big = style("tile", fontName="Text-Bold", fontSize=16.5, leading=20, textColor=ACCENT)
    small = style("tile-label", fontSize=8.5, leading=11, textColor=MUTED)
    row = [[Paragraph(figure, big), Paragraph(label, small)] for figure, label in tiles]
    return Table(
        [row],
        colWidths=[TEXT_WIDTH / len(tiles)] * len(tiles),
        style=TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, -1), PALE),
                ("LINEBEFORE", (1, 0), (-1, -1), 0.6, LINE),
                ("LEFTPADDING", (0, 0), (-1, -1), 8),
                ("RIGHTPADDING", (0, 0), (-1, -1), 2),
                ("TOPPADDING", (0, 0), (-1, -1), 8),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 9),
            ]
        ),
    )


def against_channel_mean():
    """ROAS by channel and region, and that divided by the ROAS of the whole channel."""
    cells = sums(["channel", "region"])
    cells["relative"] = cells["roas"] / channels["roas"].reindex(cells.index, level="channel")
    return cells.sort_values("relative", ascending=False)


def outliers(count=4):
    """The best and the worst of them, side by side."""
    cells = against_channel_mean()

    def entry(row, colour):
        channel, region = row.name
        difference = f"{row['relative'] - 1:+.0%}".replace("-", "\N{EN DASH}")
        return Paragraph(
            f"{channel} in {markup(region)}: {row['roas']:.2f} {coloured(f'({difference})', colour)}", CELL
        )

    best, worst = cells.head(count), cells.tail(count).iloc[::-1]
    columns = [[entry(row, colour) for _, row in rows.iterrows()] for rows, colour in ((best, GOOD), (worst, BAD))]
    return Table(
        list(zip(*columns, strict=True)),
        colWidths=[TEXT_WIDTH / 2] * 2,
        style=TableStyle(
            [
                ("LINEBELOW", (0, 0), (-1, -1), 0.4, LINE),
                ("TOPPADDING", (0, 0), (-1, -1), 3.2),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 4),
            ]
        ),
    )


def next_steps():
    """Advice with the sum that is behind it. The next dollar earns less than the mean one, so it is counted half."""
    weakest = channels["roas"].idxmin()
    target = channels["revenue"].idxmax()
    moved = 0.2 * channels.loc[weakest, "spend"]
    gain = moved * (0.5 * channels.loc[target, "roas"] - channels.loc[weakest, "roas"])
    yield (
        f"<b>Move a fifth of the {weakest} budget to {target}.</b> {money(moved)} over the period; "
        f"even at half of {target}'s mean return that is about {money(gain)} more revenue."
    )

    top = against_channel_mean().iloc[0]
    channel, region = top.name
    yield (
        f"<b>Book {channel} where it works: {markup(region)}.</b> It returns {top['roas']:.2f} there, "
        f"{top['relative']:.1f} times its mean, and has {top['spend'] / channels.loc[channel, 'spend']:.0%} "
        f"of the {channel} budget so far."
    )
    if outage := findings.get("outage"):
        yield (
            f"<b>Set an alarm on orders an hour.</b> From {outage['first_day']} the campaigns went on for "
            f"{outage['days']} days while nearly nothing was sold. An alarm would have stopped that within hours."
        )
    yield (
        f"<b>Watch what has changed:</b> {markup(findings['charts'][5]['title'])} (figure 6). "
        "Agree on a return below which a campaign is paused."
    )


def in_short():
    best, largest = channels.loc[channels["roas"].idxmax()], channels.iloc[0]
    yield (
        f"<b>{largest.name} carries the shop:</b> {largest['share']:.0%} of the revenue for "
        f"{largest['spend'] / total['spend']:.0%} of the budget. {best.name} has the best return, "
        f"${best['roas']:.2f} for a dollar."
    )
    losing = channels[channels["roas"] < 1]
    if len(losing):
        revenue, spend = money(losing["revenue"].sum()), money(losing["spend"].sum())
        yield f"<b>Losing money: {', '.join(losing.index)}.</b> {revenue} of revenue for {spend} of spend."
    yield f"<b>The budget is out of balance:</b> {markup(findings['charts'][2]['title'])}."
    yield f"<b>One trend to watch:</b> {markup(findings['charts'][5]['title'])}."
    if outage := findings.get("outage"):
        yield (
            f"<b>Dead days:</b> for {outage['days']} days from {outage['first_day']} money was spent and nearly "
            f"nothing sold. That cost about {money(outage['lost_revenue'])}."
        )


class Report(BaseDocTemplate):
    """A cover with a band, then plain pages; headings become the PDF's outline."""

    def __init__(self, path):
        # invariant: the same data make the same bytes, without the time of day in them.
        super().__init__(
            path, pagesize=A4, title="Marketing performance", author="llm-sandbox demo", subject=PERIOD, invariant=1
        )
        body = {"leftPadding": 0, "rightPadding": 0, "topPadding": 0, "bottomPadding": 0}
        first = Frame(MARGIN, 18 * mm, TEXT_WIDTH, HEIGHT - BAND - 26 * mm, **body)
        later = Frame(MARGIN, 18 * mm, TEXT_WIDTH, HEIGHT - 36 * mm, **body)
        self.addPageTemplates(
            [PageTemplate("cover", first, onPage=self.cover), PageTemplate("inner", later, onPage=self.footer)]
        )

    def cover(self, canvas, _):
        canvas.setFillColor(INK)
        canvas.rect(0, HEIGHT - BAND, WIDTH, BAND, stroke=0, fill=1)
        canvas.setFillColor(HexColor("#E0A030"))
        canvas.rect(MARGIN, HEIGHT - 23 * mm, 16 * mm, 1.2 * mm, stroke=0, fill=1)
        canvas.setFillColor(white)
        canvas.setFont("Text-Bold", 27)
        canvas.drawString(MARGIN, HEIGHT - 37 * mm, "Marketing performance")
        canvas.setFont("Text", 12.5)
        canvas.setFillColor(HexColor("#C9D3DF"))
        canvas.drawString(MARGIN, HEIGHT - 46 * mm, PERIOD)
        campaigns = df.groupby(["channel", "campaign"]).ngroups
        scope = f"{len(channels)} channels, {campaigns} campaigns, {len(regions)} regions"
        canvas.drawString(MARGIN, HEIGHT - 53 * mm, scope)
        self.footer(canvas, _)

    def footer(self, canvas, _):
        canvas.setStrokeColor(LINE)
        canvas.setLineWidth(0.6)
        canvas.line(MARGIN, 13 * mm, WIDTH - MARGIN, 13 * mm)
        canvas.setFont("Text", 8)
        canvas.setFillColor(MUTED)
        canvas.drawString(MARGIN, 8.5 * mm, f"Marketing performance, {PERIOD}")
        canvas.drawRightString(WIDTH - MARGIN, 8.5 * mm, f"Page {canvas.getPageNumber()}")

    def afterFlowable(self, flowable):
        if getattr(flowable, "style", None) is HEADING:
            key = f"page-{self.page}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(flowable.getPlainText(), key)


TERMS = {
    "ROAS": "return on ad spend: revenue divided by spend. 1.00 is break-even before the cost of goods.",
    "CPA": "cost per acquisition: spend divided by conversions (orders).",
    "CTR, CVR": "clicks divided by impressions; conversions divided by clicks.",
    "Ratios": "sums divided by sums over the same rows, never means of daily ratios. Rows without spend, conversions "
    "or revenue are in neither side, so the totals are slightly lower than in the books.",
    "Lost revenue of dead days": "what the spend of these days brings at the median return of the four weeks around "
    "them, less what it brought.",
}


def story():
    yield NextPageTemplate("inner")
    yield headline_figures()
    yield Paragraph("In short", SUBHEADING)
    for point in in_short():
        yield Paragraph(point, BULLET, bulletText="•")
    yield Spacer(1, 8)
    yield figure(1)

    yield PageBreak()
    yield Paragraph("Channels", HEADING)
    yield Paragraph(
        "What each channel costs and brings. Green returns are above the mean of all channels, red ones below "
        "break-even; the share is that of all revenue.",
        LEAD,
    )
    yield data_table(["Channel", *KPI_HEADER], [*kpi_rows(channels), *kpi_rows(everything)], KPI_WIDTHS, total_row=True)
    yield Spacer(1, 9)
    yield figure(2, TEXT_WIDTH * 0.83)
    yield figure(3, TEXT_WIDTH * 0.83)

    yield PageBreak()
    yield Paragraph("Regions", HEADING)
    yield Paragraph("Where the channels work better or worse than they do on average.", LEAD)
    yield figure(4)
    yield data_table(["Region", *KPI_HEADER], kpi_rows(regions), KPI_WIDTHS)
    yield Paragraph("Furthest from their channel's mean", SUBHEADING)
    yield outliers()

    yield PageBreak()
    yield Paragraph("Campaigns and trend", HEADING)
    yield Paragraph("How steadily each campaign earns, and how the return of the channels has changed.", LEAD)
    yield figure(5)
    yield figure(6)

    yield PageBreak()
    yield Paragraph("What to do next", HEADING)
    yield Paragraph("Each step with the sum that is behind it.", LEAD)
    for step in next_steps():
        yield Paragraph(step, BULLET, bulletText="•")
    yield Spacer(1, 12)
    yield Paragraph("Data and method", HEADING)
    yield Paragraph("The export was not clean. This is what was found in it, and what was done about it.", LEAD)
    rows = [[item["issue"], f"{item['rows']:,}", Paragraph(markup(item["treatment"]), CELL)] for item in issues]
    yield data_table(["Found", "Number", Paragraph("Treatment", HEAD)], rows, [0.36, 0.14, 0.5], total_row=True)
    yield Paragraph("Terms", SUBHEADING)
    for term, meaning in TERMS.items():
        yield Paragraph(f"<b>{term}:</b> {meaning}", TERM)


report = Report("report.pdf")
report.build(list(story()))
print(f"report.pdf: {report.page} pages, {Path('report.pdf').stat().st_size:,} bytes")
