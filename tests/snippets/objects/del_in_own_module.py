# given: helper.py
#| class Noisy:
#|     def __init__(self, name):
#|         self.name = name
#|
#|     def __del__(self):
#|         print("del", self.name, __name__)
#|
#|
#| noisy = Noisy("of the module")
import helper

mine = helper.Noisy("of main")
print("main ends")
