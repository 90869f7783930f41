import atexit


def late():
    import colorsys
    import queue

    print(colorsys.rgb_to_hsv(1, 0, 0), queue.Queue().empty())


atexit.register(late)
