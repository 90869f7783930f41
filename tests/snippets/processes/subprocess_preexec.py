import os
import subprocess

subprocess.run(["sh", "-c", "umask; pwd"], preexec_fn=lambda: os.umask(0o077), cwd="/")
reader, writer = os.pipe()
subprocess.run(["sh", "-c", f"echo through >&{writer}"], pass_fds=[writer])
print(os.read(reader, 100))
