error = ValueError("wrong")
error.__notes__ = "not a list"
raise error
