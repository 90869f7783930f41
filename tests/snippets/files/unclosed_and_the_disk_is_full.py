import os

file = open("/dev/full", "w")
file.write("no room")
other = open("kept.txt", "w")
other.write("kept")
