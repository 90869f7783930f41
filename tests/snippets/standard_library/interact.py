import code

shell = code.InteractiveConsole({"x": 5})
print(shell.push("x + 1"), shell.push("1 / 0"), shell.push("if x:"))
code.interact(banner="hello", exitmsg="bye", local={})
