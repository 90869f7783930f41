# differs: stderr: below the program there is one frame of the fork server
def down(n):
    return down(n + 1)


down(0)
