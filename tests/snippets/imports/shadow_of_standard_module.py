# start: cold: a module of the standard library is hidden from before the start
# given: calendar.py
#| """The user's own."""
#| import_count = 1
import calendar

print(calendar.__doc__, calendar.__file__)
import datetime

print(datetime.date(2026, 2, 3).isoformat())
