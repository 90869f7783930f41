"""Archives whose bytes depend on their files alone: sorted, of one time, owned by root."""

import gzip
import io
import os
import tarfile
import time
import zipfile
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
PROGRAM, FILE = 0o755, 0o644

# Path in the archive: content, or a file with it; and the mode.
Files = dict[str, tuple[bytes | str | Path, int]]


def content(of: bytes | str | Path) -> bytes:
    """The bytes of a file, given as bytes, text or path."""
    if isinstance(of, Path):
        return of.read_bytes()
    return of.encode() if isinstance(of, str) else of


def folder(path: Path, at: str) -> Files:
    """The files of a folder, which are no programs, below `at`."""
    return {at + str(file.relative_to(path)): (file, FILE) for file in path.rglob("*") if file.is_file()}


def zip_of(path: Path, files: Files, first: tuple[str, ...] = ()) -> None:
    """Writes a zip archive: the files named in `first`, then all others by name."""
    # The format knows no earlier year.
    when = max(time.gmtime(EPOCH)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name not in first, name)):
            info = zipfile.ZipInfo(name, when)
            info.create_system = 3
            info.external_attr = (0o100000 | files[name][1]) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content(files[name][0]))


def tgz_of(path: Path, files: Files) -> None:
    """Writes a tar archive, compressed with gzip."""
    with path.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in sorted(files):
                data = content(files[name][0])
                info = tarfile.TarInfo(name)
                info.size, info.mode, info.mtime = len(data), files[name][1], EPOCH
                info.uname = info.gname = "root"
                archive.addfile(info, io.BytesIO(data))
