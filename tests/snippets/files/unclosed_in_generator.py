def writer():
    with open("generator.txt", "w") as file:
        while True:
            file.write((yield))


lines = writer()
next(lines)
lines.send("one\n")
lines.send("two\n")
