import ctypes
import os
import resource

libc = ctypes.CDLL(None)
names = {2: "PDEATHSIG", 3: "DUMPABLE", 21: "SECCOMP", 23: "CAPBSET", 30: "TIMERSLACK", 37: "CHILD_SUBREAPER", 39: "NO_NEW_PRIVS", 42: "THP_DISABLE", 68: "MEMORY_MERGE"}
for number, name in names.items():
    value = ctypes.c_int(-7)
    result = libc.prctl(number, ctypes.byref(value) if number in (2, 37) else 0, 0, 0, 0)
    print(name, result, value.value if number in (2, 37) else "")
print(os.nice(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0))
print(sorted(os.sched_getaffinity(0)), os.cpu_count(), os.process_cpu_count())
