import os
import pathlib

os.makedirs("a/b")
os.chdir("a/b")
open("file.txt", "w").write("closed at once")
os.symlink("file.txt", "link")
os.link("file.txt", "hard")
pathlib.Path("../up.txt").write_text("up")
os.mkfifo("fifo")
os.chmod("hard", 0o640)
print(sorted(str(path) for path in pathlib.Path("/mnt/data").rglob("*")))
