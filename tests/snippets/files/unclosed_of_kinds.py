import bz2
import codecs
import csv
import gzip
import io
import lzma

codecs_file = codecs.open("codecs.txt", "w", "utf-16")
codecs_file.write("é")
rows = csv.writer(open("rows.csv", "w", newline=""))
rows.writerow(["a", "b"])
gzip_file = gzip.GzipFile("packed.gz", "wb", mtime=0)
gzip_file.write(b"packed" * 100)
bz2_file = bz2.open("packed.bz2", "wt")
bz2_file.write("packed" * 100)
lzma_file = lzma.open("packed.xz", "wb")
lzma_file.write(b"packed" * 100)
wrapper = io.TextIOWrapper(io.BufferedWriter(io.FileIO("wrapped.txt", "w")), newline="\r\n")
wrapper.write("wrapped\n")
line_buffered = open("lines.txt", "w", buffering=1)
line_buffered.write("whole\nhalf")
unbuffered = open("raw.bin", "wb", buffering=0)
unbuffered.write(b"raw")
