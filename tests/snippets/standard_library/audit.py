import sys

events = []
sys.addaudithook(lambda event, arguments: events.append(event) if recording else None)
recording = True
compile("1", "x", "eval")
open("audited.txt", "w").close()
recording = False
print(events)
