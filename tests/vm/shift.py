"""Gives the files of a folder the owners that a rootless engine of uid 1000 has for them: shift.py FOLDER."""

import os
import stat
import sys


def own(path: str) -> None:
    found = os.lstat(path)
    ids = [1000 if n == 0 else 99999 + n for n in (found.st_uid, found.st_gid)]
    os.lchown(path, *ids)
    # A new owner costs a file its setuid bit.
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(path, stat.S_IMODE(found.st_mode))

own(sys.argv[1])
for folder, folders, files in os.walk(sys.argv[1]):
    for name in folders + files:
        own(os.path.join(folder, name))
