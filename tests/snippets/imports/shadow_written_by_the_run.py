# differs: stdout: the libraries are loaded before the program starts
with open("seaborn.py", "w") as file:
    file.write("name = 'written by the run itself'\n")
import seaborn

print(seaborn.__file__)
