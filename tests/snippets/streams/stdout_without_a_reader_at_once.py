import os

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
print("nobody reads this")
