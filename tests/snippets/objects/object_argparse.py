import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=3)
print(parser.parse_args())
parser.print_help()
parser.parse_args(["--count", "x"])
