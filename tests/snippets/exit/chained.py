try:
    1 / 0
except ZeroDivisionError as error:
    raise SystemExit(6) from error
