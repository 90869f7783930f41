import sys

sys.stdout = open("out.txt", "w")
print("in the file, unflushed")
sys.stderr = sys.stdout
1 / 0
