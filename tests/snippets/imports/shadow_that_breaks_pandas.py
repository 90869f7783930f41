# start: cold: a module that libraries import is hidden from before the start
# given: calendar.py
#| import_count = 1
import pandas
