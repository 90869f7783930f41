import multiprocessing
import os


def work():
    print("never")


saved = os.dup(2)
os.dup2(os.open("errors.txt", os.O_WRONLY | os.O_CREAT), 2)
process = multiprocessing.get_context("spawn").Process(target=work)
process.start()
process.join()
os.dup2(saved, 2)
print(process.exitcode)
# Without the numbers of descriptors.
lines = [line for line in open("errors.txt").read().splitlines() if "tracker_fd" not in line and "~" not in line]
os.remove("errors.txt")
print("\n".join(lines))
