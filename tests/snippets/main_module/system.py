import sys

print(sys.argv, sys.orig_argv)
print(sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.path)
print(sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix)
print(hasattr(sys, "ps1"), sys.is_finalizing(), sys.displayhook is sys.__displayhook__)
print(sys.breakpointhook is sys.__breakpointhook__, sys.getdlopenflags())
