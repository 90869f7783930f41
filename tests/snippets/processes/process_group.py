import os

print(os.getpgrp() == os.getpid(), os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())
for attempt in os.setsid, lambda: os.tcgetpgrp(0):
    try:
        print(attempt())
    except OSError as error:
        print(error)
print(os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups(), os.getresuid())
