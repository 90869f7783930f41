import sys

sys.stdout.reconfigure(encoding="latin-1", newline="\r\n", line_buffering=True, errors="replace")
print("é", "东")
sys.stdout.reconfigure(write_through=False, line_buffering=False)
sys.stdout.write("flushed at the end")
