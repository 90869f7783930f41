import os
import tempfile

named = tempfile.NamedTemporaryFile(dir=".", prefix="named")
kept = tempfile.NamedTemporaryFile("w", dir=".", delete=False)
os.rename(kept.name, "kept.txt")
kept.write("kept")
folder = tempfile.TemporaryDirectory(dir=".")
open(os.path.join(folder.name, "inside.txt"), "w").close()
nameless = tempfile.TemporaryFile(dir=".")
spooled = tempfile.SpooledTemporaryFile()
print(len(os.listdir(".")), tempfile.tempdir, tempfile.gettempdir(), tempfile.gettempprefix())
