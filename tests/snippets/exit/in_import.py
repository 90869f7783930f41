# given: helper.py
#| raise SystemExit("while it was imported")
import helper
