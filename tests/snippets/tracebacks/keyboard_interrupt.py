def work():
    raise KeyboardInterrupt("stop")


try:
    work()
finally:
    print("cleaned up")
