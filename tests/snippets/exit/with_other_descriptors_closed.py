import os

os.closerange(3, 1024)
file = open("kept.txt", "w")
file.write("kept")
print("goes on")
