import os

print(oct(os.umask(0o022)))
os.umask(0o027)
open("group.txt", "w").close()
os.mkdir("folder")
print(oct(os.stat("group.txt").st_mode), oct(os.stat("folder").st_mode))
