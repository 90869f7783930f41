import os

file = open("lost.txt", "w")
file.write("lost")
os.close(file.fileno())
other = open("kept.txt", "w")
other.write("kept")
