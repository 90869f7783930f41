try:
    input("first prompt> ")
except EOFError as error:
    print("end:", error)
input("second prompt> ")
