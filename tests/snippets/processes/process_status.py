wanted = "Name Umask State Tgid Ngid TracerPid Uid Gid FDSize Groups Threads CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters CoreDumping THP_enabled untag_mask"
import os

for line in open("/proc/self/status"):
    name, value = line.rstrip("\n").split(":\t", 1)
    if name == "Tgid":
        value = str(int(value) == os.getpid())
    if name in wanted.split():
        print(name, value)
