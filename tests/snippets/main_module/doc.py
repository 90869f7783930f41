"""What this script is for."""

print(__doc__)
help(__name__)
