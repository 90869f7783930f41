class Holder:
    pass


holder = Holder()
holder.itself = holder
holder.file = open("cycle.txt", "w")
holder.file.write("in a cycle\n")
del holder
