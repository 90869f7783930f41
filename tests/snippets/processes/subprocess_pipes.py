import subprocess

first = subprocess.Popen(["printf", "b\\na\\n"], stdout=subprocess.PIPE)
second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
first.stdout.close()
print(second.communicate()[0].split(), first.wait())
with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as cat:
    print("line", file=cat.stdin, flush=True)
    print(cat.stdout.readline())
