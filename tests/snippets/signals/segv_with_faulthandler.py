# differs: stderr: the libraries are loaded before the program starts
import ctypes
import faulthandler


def crash():
    ctypes.string_at(0)


faulthandler.enable()
crash()
