import os

file = open("lost.txt", "w")
file.write("never written")
kept = open("flushed.txt", "w")
kept.write("written")
kept.flush()
os._exit(0)
