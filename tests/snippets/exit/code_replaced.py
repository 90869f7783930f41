error = SystemExit(1)
error.code = 4
raise error
