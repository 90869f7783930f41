# given: helper.py
#| def convert(text):
#|     return int(text
import helper

print("never")
