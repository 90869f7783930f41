import pandas as pd

writer = pd.ExcelWriter("book.xlsx")
pd.DataFrame({"a": [1]}).to_excel(writer)
print("main ends")
