error = ValueError("wrong")
error.add_note("first note")
error.add_note("second note\nof two lines")
error.__notes__.append(7)
raise error
