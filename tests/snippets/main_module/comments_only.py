# Nothing to do.

# Nothing at all.
