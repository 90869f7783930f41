class Node:
    def __init__(self, name):
        self.name = name
        self.itself = self

    def __del__(self):
        print("del", self.name)


kept = Node("kept until the end")
Node("garbage from the start")
print("main ends")
