import multiprocessing
import os

process = multiprocessing.current_process()
print(process.name, process.daemon, process.pid == os.getpid(), process.exitcode, process._identity)
print(multiprocessing.parent_process(), multiprocessing.active_children(), multiprocessing.get_start_method())
print(type(process).__name__, len(process.authkey), multiprocessing.Process().name, multiprocessing.cpu_count())
