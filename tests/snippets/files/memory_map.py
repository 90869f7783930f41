import mmap

with open("mapped.bin", "wb") as file:
    file.write(b"." * 100)
file = open("mapped.bin", "r+b")
mapped = mmap.mmap(file.fileno(), 0)
mapped[:5] = b"dirty"
