import sqlite3

connection = sqlite3.connect("data.sqlite", isolation_level=None)
connection.row_factory = sqlite3.Row
connection.execute("create table t (id integer primary key, name text)")
connection.executemany("insert into t (name) values (?)", [("a",), ("b",)])
print([dict(row) for row in connection.execute("select * from t")])
connection.create_function("twice", 1, lambda value: value * 2)
print(connection.execute("select twice(21)").fetchone()[0])
connection.execute("select * from missing")
