"""The image of a page of a PDF document.

The fork server forks a process for each page, which gets the open file and never a path (see summary.py, whose limits
are set before). The file may be anything, and made to harm its reader. The library is loaded in that process alone.
"""

import json
import math
import struct
import zlib

# Pixels of the longest side, as models look at images, and bytes of an image.
MAX_SIDE, MAX_IMAGE = 1568, 800 << 10

# Pages that are counted.
MAX_PAGES = 100_000

# FPDF_ERR_PASSWORD of PDFium.
WANTS_PASSWORD = 4


def report_of(number, page):
    """A line of JSON on the document, and the image of the page unless there is a problem. Page 0 is no page."""
    document, image = {"pages": 0}, b""
    try:
        import pypdfium2 as pdfium
    except ImportError:
        return packed({**document, "problem": "no_library"})
    try:
        with open(number, "rb", closefd=False) as file:
            opened = pdfium.PdfDocument(file)
            document["pages"] = min(len(opened), MAX_PAGES)
            if page > document["pages"]:
                document["problem"] = "no_such_page"
            elif page:
                image = drawn(opened[page - 1])
    except MemoryError:
        document["problem"] = "too_large"
    except pdfium.PdfiumError as error:
        wants_password = getattr(error, "err_code", None) == WANTS_PASSWORD or "password" in str(error)
        document["problem"] = "encrypted" if wants_password else "broken"
    except Exception:
        document["problem"] = "broken"
    return packed(document) + image


def packed(document):
    return json.dumps(document).encode() + b"\n"


def drawn(page):
    """The page as PNG, smaller if the image would have too many bytes."""
    width, height = page.get_size()
    longest = max(width, height)
    if not (math.isfinite(longest) and min(width, height) > 0):
        raise ValueError("a page without a size")
    side = MAX_SIDE
    while True:
        bitmap = page.render(scale=side / longest, rev_byteorder=True, maybe_alpha=False)
        image = png(bitmap)
        if len(image) <= MAX_IMAGE:
            return image
        side = side * 3 // 4


def png(bitmap):
    """A bitmap with three bytes a pixel as PNG."""
    width, height, stride, pixels = bitmap.width, bitmap.height, bitmap.stride, memoryview(bitmap.buffer).cast("B")
    if bitmap.n_channels != 3:
        raise ValueError("other colours")
    compressor = zlib.compressobj(6)
    parts = []
    for row in range(height):
        # Each row begins with its filter: none.
        parts.append(compressor.compress(b"\0" + pixels[row * stride : row * stride + 3 * width]))
    parts.append(compressor.flush())
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", b"".join(parts)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
