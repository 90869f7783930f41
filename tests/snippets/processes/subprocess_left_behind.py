import subprocess

quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.Popen(["sh", "-c", "sleep 30; touch late.txt"], start_new_session=True, **quiet)
subprocess.Popen(["sh", "-c", "sleep 30; touch late.txt"], **quiet)
print("main ends")
