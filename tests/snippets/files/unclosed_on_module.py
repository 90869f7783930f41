import builtins
import json
import os

os.kept = open("os.txt", "w")
os.kept.write("hung on os\n")
json.decoder.kept = [open("json.txt", "w")]
json.decoder.kept[0].write("hung on json\n")
builtins.kept = open("builtins.txt", "wb")
builtins.kept.write(b"hung on builtins\n")
