"""Begins with a byte order mark."""
print(__doc__, ascii(open(__file__).read(1)))
