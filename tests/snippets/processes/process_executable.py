import os

print(os.path.basename(os.readlink("/proc/self/exe")), os.readlink("/proc/self/cwd"), os.readlink("/proc/self/root"))
print(os.access("/proc/self/environ", os.R_OK), os.access("/proc/self/mem", os.W_OK))
print(len(open("/proc/self/maps").read()) > 1000, open("/proc/self/mem", "rb").fileno() > 2)
