import threading

timer = threading.Timer(0.05, print, ["the timer"])
timer.start()
cancelled = threading.Timer(30, print, ["never"])
cancelled.start()
cancelled.cancel()
print("main ends")
