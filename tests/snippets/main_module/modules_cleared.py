import sys

file = open("kept.txt", "w")
file.write("kept")
sys.modules.clear()
print("the end")
