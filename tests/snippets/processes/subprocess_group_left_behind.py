import subprocess

process = subprocess.Popen("sleep 30 & sleep 30", shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
print(process.poll())
raise ValueError("main fails")
