import sys

try:
    sys.exit(2)
finally:
    print("cleans up")
    try:
        sys.exit(3)
    finally:
        print("twice")
