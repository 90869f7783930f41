import locale
import sys

print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getencoding())
print(sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.flags.utf8_mode)
print(locale.localeconv()["decimal_point"], f"{1234567.891:n}", "é".upper(), sorted("zäa", key=locale.strxfrm))
try:
    locale.setlocale(locale.LC_ALL, "fr_FR.UTF-8")
except locale.Error as error:
    print(error)
