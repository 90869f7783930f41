# %%
log = open("log.txt", "w+")
log.write("one\n")
# %%
log.write("two\n"); log.flush()
open("log.txt").read()
# %%
import os
os.makedirs("deep/er"); os.chdir("deep")
os.getcwd()
# %%
os.getcwd(), os.listdir()
# %%
os.environ["MINE"] = "kept"
# %%
os.environ["MINE"], os.popen("echo $MINE").read()
# %%
os.chdir("/mnt/data"); log.closed
# %%
import tempfile, pathlib
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "a").write_text("b")
pathlib.Path(folder).exists()
# %%
import json, csv, sqlite3
db = sqlite3.connect("table.db"); db.execute("create table t (a)"); db.execute("insert into t values (1)"); db.commit()
# %%
db.execute("select * from t").fetchall()
# %%
os.remove("table.db"); log.close()
os.listdir()
