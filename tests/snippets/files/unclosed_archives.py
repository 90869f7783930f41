import tarfile
import zipfile

archive = zipfile.ZipFile("files.zip", "w")
archive.writestr(zipfile.ZipInfo("a.txt"), "content of a")
tape = tarfile.open("files.tar", "w")
tape.addfile(tarfile.TarInfo("b"))
