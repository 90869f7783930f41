# differs: stdout: the kernel remembers how the fork server was started
print(open("/proc/self/cmdline").read().split("\0"), open("/proc/self/comm").read())
