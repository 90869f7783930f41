"""Fonts under the names that programs ask for, and glyphs for the characters that a font lacks.

    name_for_matplotlib(manager)    Arial, SimHei and others are found, instead of a warning for each text
    complete_reportlab(..)          a character that a font of a PDF lacks is set in one that has it

matplotlib falls back from font to font by itself (see matplotlibrc), reportlab does not: it would print squares.
"""

import dataclasses
import functools
import os
import re

# Folders of fonts, in the image and in the embedded engine.
FOLDERS = "/usr/share/fonts", "/usr/local/share/fonts", "/usr/local/share/matplotlib/fonts/ttf"

# Fonts that have glyphs which others lack, the best first.
FALLBACKS = (
    "wqy-microhei.ttc",
    "NotoSansDevanagari-Regular.ttf",
    "NotoSansBengali-Regular.ttf",
    "NotoSansTamil-Regular.ttf",
    "NotoSansThai-Regular.ttf",
    "Symbola.ttf",
    "NotoSansSymbols2-Regular.ttf",
)

# Families that are installed, and the other names for which they are used.
NAMES = {
    "DejaVu Sans": """
        Aptos, Arial, Arial Narrow, Arial Unicode MS, Avenir, Avenir Next, Calibri, Candara, Carlito, Century Gothic,
        Comic Neue, Comic Sans MS, Corbel, Fira Sans, Franklin Gothic Medium, Futura, Geneva, Gill Sans, Helvetica,
        Helvetica Neue, Humor Sans, IBM Plex Sans, Impact, Inter, Lato, Liberation Sans, Lucida Grande,
        Lucida Sans Unicode, Montserrat, Nimbus Sans, Noto Sans, Nunito, Open Sans, Optima, Poppins, PT Sans, Raleway,
        Roboto, San Francisco, Segoe UI, SF Pro Display, SF Pro Text, Source Sans 3, Source Sans Pro, Tahoma,
        Trebuchet MS, Ubuntu, Univers, Verdana, xkcd, xkcd Script
    """,
    "DejaVu Serif": """
        Baskerville, Book Antiqua, Bookman Old Style, Cambria, Century Schoolbook, Charter, CMU Serif,
        Computer Modern Roman, Constantia, Didot, EB Garamond, Garamond, Georgia, Latin Modern Roman, Liberation Serif,
        Lora, Merriweather, Nimbus Roman, Noto Serif, Palatino, Palatino Linotype, Playfair Display, PT Serif,
        Source Serif Pro, Times, Times New Roman
    """,
    "DejaVu Sans Mono": """
        Andale Mono, Cascadia Code, Consolas, Courier, Courier New, Fira Code, Fira Mono, IBM Plex Mono, Inconsolata,
        JetBrains Mono, Liberation Mono, Lucida Console, Menlo, Monaco, Noto Sans Mono, Roboto Mono, SF Mono,
        Source Code Pro, Ubuntu Mono
    """,
    "WenQuanYi Micro Hei": """
        AppleGothic, Apple SD Gothic Neo, Batang, DengXian, Dotum, Droid Sans Fallback, FangSong, Gulim, Heiti SC,
        Heiti TC, Hiragino Kaku Gothic Pro, Hiragino Kaku Gothic ProN, Hiragino Maru Gothic Pro, Hiragino Sans,
        Hiragino Sans GB, IPAexGothic, IPAGothic, IPAPGothic, KaiTi, LiSu, Malgun Gothic, Meiryo, Microsoft JhengHei,
        Microsoft YaHei, Microsoft YaHei UI, MingLiU, MS Gothic, MS Mincho, MS PGothic, Nanum Gothic, NanumBarunGothic,
        NanumGothic, Noto Sans CJK HK, Noto Sans CJK JP, Noto Sans CJK KR, Noto Sans CJK SC, Noto Sans CJK TC,
        Noto Sans JP, Noto Sans KR, Noto Sans SC, Noto Sans TC, Noto Serif CJK JP, Noto Serif CJK KR, Noto Serif CJK SC,
        Noto Serif CJK TC, NSimSun, Osaka, PingFang HK, PingFang SC, PingFang TC, PMingLiU, SimHei, SimSun,
        Songti SC, Source Han Sans CN, Source Han Sans JP, Source Han Sans SC, Source Han Serif SC, STFangsong, STHeiti,
        STKaiti, STSong, STXihei, TakaoGothic, TakaoPGothic, VL Gothic, WenQuanYi Zen Hei, YouYuan, Yu Gothic, YuGothic
    """,
    "Symbola": "Apple Color Emoji, Noto Color Emoji, Noto Emoji, Segoe UI Emoji, Segoe UI Symbol, Twemoji",
}

# The font that looks most like one that lacks a glyph, by the start of that one's name.
ALIKE = {
    "Courier-Bold": "DejaVuSansMono-Bold.ttf",
    "Courier": "DejaVuSansMono.ttf",
    "Times-Bold": "DejaVuSerif-Bold.ttf",
    "Times": "DejaVuSerif.ttf",
    "Helvetica-Bold": "DejaVuSans-Bold.ttf",
    "": "DejaVuSans.ttf",
}


@functools.cache
def files():
    """The files of fonts by their names."""
    found = {}
    for folder in FOLDERS:
        for place, _, names in os.walk(folder):
            found.update((name, os.path.join(place, name)) for name in names)
    return found


def once():
    """Returns a filter of matplotlib's log that passes each text once, and none on weights: few fonts have a bold face,
    and a bold title would cause a text for each."""
    said = set()

    def is_new(record):
        text = record.getMessage()
        is_told = text in said or text.startswith("findfont: Failed to find font weight")
        said.add(text)
        return not is_told

    return is_new


def name_for_matplotlib(manager):
    """Gives the fonts of a `FontManager` their other names, except names that other fonts have."""
    taken = {entry.name for entry in manager.ttflist}
    for family, names in NAMES.items():
        entries = [entry for entry in manager.ttflist if entry.name == family]
        for name in " ".join(names.split()).split(", "):
            if name not in taken:
                manager.ttflist += [dataclasses.replace(entry, name=name) for entry in entries]


def complete_reportlab(text_object):
    """Has reportlab's class for texts, and its fonts, take the glyphs that are missing from another font."""
    from reportlab.pdfbase.pdfmetrics import Font, _fonts, getFont, registerFont
    from reportlab.pdfbase import ttfonts
    from reportlab.pdfbase.ttfonts import ShapedStr, TTFont

    plain, mapping = text_object._formatText, ttfonts.makeToUnicodeCMap

    def makeToUnicodeCMap(fontname, subset):
        # For characters above U+FFFF reportlab writes the number, for which readers then find no text at all.
        pairs = lambda match: f"<{chr(int(match[1], 16)).encode('utf-16-be').hex()}>"
        return re.sub("<([0-9A-F]{5,6})>", pairs, mapping(fontname, subset))

    ttfonts.makeToUnicodeCMap = makeToUnicodeCMap

    def fallback(file):
        """Returns the font in this file, if it exists."""
        name = os.path.splitext(file)[0]
        if name not in _fonts:
            if file not in files():
                return None
            registerFont(TTFont(name, files()[file]))
        return getFont(name)

    def has(font, character):
        if font._dynamicFont:
            return ord(character) in font.face.charToGlyph
        for one in [font, *font.substitutionFonts]:
            try:
                character.encode(one.encName)
                return True
            except UnicodeEncodeError:
                pass
        return False

    def has_all(font, text):
        if font._dynamicFont:
            return all(map(font.face.charToGlyph.__contains__, map(ord, text)))
        # Fonts of symbols have those in the places of letters.
        if font._multiByte or font.face.builtIn and font.face.requiredEncoding:
            return True
        try:
            text.encode(font.encName)
            return True
        except UnicodeEncodeError:
            return False

    def chosen(font, character):
        """Returns the font that sets a character where this font is asked for."""
        if has(font, character) or character.isspace() or not character.isprintable():
            return font
        alike = next(file for name, file in ALIKE.items() if font.fontName.startswith(name))
        for other in map(fallback, (alike, *FALLBACKS)):
            if other and ord(character) in other.face.charToGlyph:
                return other
        return font

    def divided(font, text):
        """Returns the text in pieces, each with the font that sets it."""
        pieces = []
        for character in text:
            one = chosen(font, character)
            if pieces and pieces[-1][0] is one:
                pieces[-1][1] += character
            else:
                pieces.append([one, character])
        return pieces

    def width_of(plain_width):
        @functools.wraps(plain_width)
        def stringWidth(self, text, size, encoding="utf8"):
            if isinstance(text, bytes):
                text = text.decode(encoding)
            if has_all(self, text):
                return plain_width(self, text, size, encoding)
            pieces = divided(self, text)
            return sum(width_by[type(font)](font, piece, size, encoding) for font, piece in pieces)

        return stringWidth

    width_by = {kind: kind.stringWidth for kind in (Font, TTFont)}
    for kind in width_by:
        kind.stringWidth = width_of(kind.stringWidth)

    @functools.wraps(plain)
    def _formatText(self, text):
        if isinstance(text, bytes):
            text = text.decode("utf8")
        own = getFont(self._fontname)
        if type(own) not in width_by or isinstance(text, ShapedStr) or has_all(own, text):
            return plain(self, text)
        codes, name = [], self._fontname
        try:
            for font, piece in divided(own, text):
                if font is not own:
                    self._fontname, self._curSubset = font.fontName, -1
                codes.append(plain(self, piece))
                if font is not own:
                    self._fontname, self._curSubset = name, -1
                    if not own._dynamicFont:
                        inner = self._canvas._doc.getInternalFontName(name)
                        codes.append(f"{inner} {self._fontsize} Tf {self._leading} TL")
        finally:
            self._fontname = name
        return " ".join(codes)

    text_object._formatText = _formatText
