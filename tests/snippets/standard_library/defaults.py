import calendar
import copyreg
import csv
import decimal
import json
import mimetypes
import re
import socket
import sys

print(sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.getswitchinterval(), sys.float_repr_style)
print(socket.getdefaulttimeout(), calendar.firstweekday(), csv.list_dialects(), csv.field_size_limit())
print(decimal.getcontext().prec, mimetypes.guess_type("a.csv"), json.dumps({"b": 1, "a": float("inf")}))
print(sys.getallocatedblocks() > 0, sys.hash_info.algorithm, sys.version_info[:2], sys.platform, sys.byteorder)
print(sys.intern("x") is sys.intern("x"), sys.maxsize, hash(1.5), hash(2**61))
sys.set_int_max_str_digits(700)
print(len(str(10**600)))
print(10**800)
