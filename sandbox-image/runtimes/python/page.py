"""The image of a page of a PDF document, or of an Office document if the image has LibreOffice.

The fork server forks a process for each page, which gets the open file and never a path (see summary.py, whose limits
are set before the page is drawn). The file may be anything, and made to harm its reader. The library is loaded in that
process alone. LibreOffice is a process of its own, which ends with this one.
"""

import json
import math
import os
import shutil
import struct
import tempfile
import zlib

# LibreOffice's program, which the recipe `documents` installs. The command `soffice` would start it in a third process.
OFFICE = "/usr/lib/libreoffice/program/soffice.bin"

# The first bytes of Office documents: of files from 2007 on and of OpenDocument, of older ones, and of RTF.
OFFICE_STARTS = b"PK\3\4", b"\xd0\xcf\x11\xe0", b"{\\rtf"

# The folder with the newest Office document as PDF, for its next page.
CONVERTED = "/tmp/.pages"

# Bytes of an Office document and of its PDF; bytes of memory and seconds of processor time of LibreOffice, which needs
# 170 MB and 0.5 s for a short letter.
MAX_OFFICE, OFFICE_MEMORY, OFFICE_SECONDS = 64 << 20, 384 << 20, 20

# The exit code with which LibreOffice asks to be started again, after it has made its settings.
AGAIN = 81

# Starts a program that the kernel ends first if memory runs out, and none of the user's. A fork of the fork server could
# not say so itself, as it may not write to its own files of /proc.
FIRST_TO_END = 'echo 1000 > /proc/$$/oom_score_adj; exec "$@"'

# PR_SET_PDEATHSIG and SIGKILL.
DEATH_SIGNAL, KILL = 1, 9

# Pixels of the longest side, as models look at images, and bytes of an image.
MAX_SIDE, MAX_IMAGE = 1568, 800 << 10

# Pages that are counted.
MAX_PAGES = 100_000

# FPDF_ERR_PASSWORD of PDFium.
WANTS_PASSWORD = 4


def as_pdf(number, page):
    """Returns a document's file if it is no Office document, otherwise an open file with it as PDF, or None; and a
    problem, or None. For page 0, which is no page, nothing is converted."""
    if not os.pread(number, 8, 0).startswith(OFFICE_STARTS):
        return number, None
    if not os.path.exists(OFFICE):
        return None, "no_library"
    found = os.fstat(number)
    name = "-".join(map(str, (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size))) + ".pdf"
    path = os.path.join(CONVERTED, name)
    if not os.path.exists(path):
        if not page:
            return None, None
        if found.st_size > MAX_OFFICE:
            return None, "too_large"
        try:
            convert(number, path)
        except MemoryError:
            return None, "too_large"
        except Exception:
            return None, "broken"
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK), None


def convert(number, path):
    """Has LibreOffice write the PDF of an open file to this path. Raises if it writes none: `MemoryError` if it could
    read the document, or has died."""
    import ctypes
    import resource
    import subprocess

    shutil.rmtree(CONVERTED, ignore_errors=True)
    os.makedirs(CONVERTED, 0o700, exist_ok=True)
    death = ctypes.CDLL(None).prctl

    def confine():
        death(DEATH_SIGNAL, KILL, 0, 0, 0)
        for limit, most in (
            (resource.RLIMIT_DATA, OFFICE_MEMORY),
            (resource.RLIMIT_CPU, OFFICE_SECONDS),
            (resource.RLIMIT_FSIZE, MAX_OFFICE),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (most, most))

    with tempfile.TemporaryDirectory(dir=CONVERTED) as folder:
        # A copy of the file would need memory. Its name says nothing, as the kind of a document is in its bytes.
        document = os.path.join(folder, "document")
        os.symlink(f"/proc/self/fd/{number}", document)
        command = [
            *("sh", "-c", FIRST_TO_END, OFFICE, OFFICE, "--headless", "--norestore", "--nologo", "--nolockcheck"),
            # New settings each time: earlier programs could have written macros into those of an earlier time.
            *(f"-env:UserInstallation=file://{folder}/settings", "--convert-to", "pdf", "--outdir", folder, document),
        ]
        for _ in range(2):
            null = subprocess.DEVNULL
            done = subprocess.run(
                command, stdin=null, stdout=subprocess.PIPE, stderr=null, pass_fds=(number,), preexec_fn=confine
            )
            if done.returncode != AGAIN:
                break
        # It prints a line when it has read the document, and ends with 0 even if it could not write the PDF.
        if not os.path.exists(document + ".pdf") and (done.returncode or done.stdout):
            raise MemoryError
        os.rename(document + ".pdf", path)


def report_of(number, page, problem=None):
    """A line of JSON on the document, and the image of the page unless there is a problem. Page 0 is no page."""
    document, image = {"pages": 0}, b""
    if problem:
        return packed({**document, "problem": problem})
    if number is None:
        return packed(document)
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
