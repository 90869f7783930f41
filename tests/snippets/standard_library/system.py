import getpass
import os
import platform
import pwd
import shutil
import socket

print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, os.path.expanduser("~"), socket.gethostname())
print(shutil.get_terminal_size(), platform.python_implementation(), platform.system(), os.get_exec_path())
print(os.access("/", os.W_OK), os.access("/tmp", os.W_OK), os.access(".", os.W_OK), shutil.which("python3"))
try:
    os.get_terminal_size()
except OSError as error:
    print(error)
print(os.confstr("CS_PATH"), os.sysconf("SC_OPEN_MAX"), os.sysconf("SC_PAGESIZE"))
