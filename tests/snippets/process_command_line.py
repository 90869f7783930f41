print(open("/proc/self/cmdline").read().split("\0"), open("/proc/self/comm").read())
