import warnings

warnings.simplefilter("always", ResourceWarning)
open("left.txt", "w").write("x")
kept = open("kept.txt", "w")
kept.write("y")
