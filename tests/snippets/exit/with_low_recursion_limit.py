import sys

file = open("kept.txt", "w")
file.write("kept")
sys.setrecursionlimit(10)
