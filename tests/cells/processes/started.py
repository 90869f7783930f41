# %%
import subprocess, sys, os
subprocess.run(["echo", "from a process"])
# %%
subprocess.run("echo err >&2; exit 2", shell=True)
# %%
subprocess.run(["false"], check=True)
# %%
subprocess.check_output(["echo", "caught"], text=True)
# %%
print("one"); os.system("echo two"); print("three")
# %%
import threading
def work(): print("in a thread")
thread = threading.Thread(target=work); thread.start(); thread.join()
# %%
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail, name="mine"); thread.start(); thread.join()
# %%
from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor
with ThreadPoolExecutor(2) as pool: print(list(pool.map(lambda n: n * 2, range(3))))
# %%
event = threading.Event()
waiting = threading.Thread(target=event.wait); waiting.start()
waiting.is_alive()
# %%
event.set(); waiting.join(5); waiting.is_alive()
# %%
import multiprocessing
def square(n): return n * n
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(square, range(4)))
# %%
with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(abs, [-1]))
# %%
child = os.fork()
if child == 0:
    os._exit(5)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
# %%
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=8)
shared.buf[0] = 7
# %%
shared.buf[0]; shared.close(); shared.unlink()
# %%
from joblib import Parallel, delayed
Parallel(n_jobs=2)(delayed(square)(n) for n in range(3))
# %%
Parallel(n_jobs=2)(delayed(square)(n) for n in range(4))
# %%
Parallel(n_jobs=2)(delayed(square)(n) for n in range(5))
# %%
# differs: result: joblib's threads have ended with the processes that they waited for
threading.current_thread().name, threading.active_count()
# %%
sleeper = subprocess.Popen(["sleep", "100"]); sleeper.poll()
# %%
# differs: result: what a cell starts ends with it
sleeper.poll()
# %%
sleeper.kill()
# %%
timer = threading.Timer(0.001, print, ["from a timer"]); timer.start(); timer.join()
