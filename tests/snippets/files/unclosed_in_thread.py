# differs: files: what a thread has written to a file that nobody closes is kept
import threading


def work():
    file = open("thread.txt", "w")
    file.write("by a daemon")
    kept.append(file)
    started.set()
    threading.Event().wait()


kept = []
started = threading.Event()
threading.Thread(target=work, daemon=True).start()
started.wait()
