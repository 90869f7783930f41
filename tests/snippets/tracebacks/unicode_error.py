print("ok")
"é".encode("ascii")
