import dbm.dumb
import shelve
import sqlite3

shelf = shelve.Shelf(dbm.dumb.open("shelf", "c"), writeback=True)
shelf["key"] = [1]
shelf["key"].append(2)
connection = sqlite3.connect("data.sqlite")
connection.execute("create table t (x)")
connection.execute("insert into t values (1)")
connection.commit()
connection.execute("insert into t values (2)")
print(connection.in_transaction, connection.execute("select count(*) from t").fetchone())
