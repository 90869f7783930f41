# given: helper.py
#| """A module of the user's own."""
#|
#|
#| def convert(text):
#|     return int(text)
import helper

helper.convert("twelve")
