import sys

sys.stderr = open("errors.txt", "w")
{}["missing"]
