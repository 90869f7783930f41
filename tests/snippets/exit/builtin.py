print("out")
exit("with exit()")
