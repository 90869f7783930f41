# %%
# stdin: ada
name = input("who? ")
name
# %%
# stdin: 1
# stdin: 2
int(input()) + int(input())
# %%
input("nobody answers ")
# %%
# stdin: all of
# stdin: it
import sys
sys.stdin.read()
# %%
# stdin: a
# stdin: b
[line.strip() for line in sys.stdin]
# %%
# stdin: secret
import getpass
getpass.getpass("password: ")
# %%
# stdin: left over
"unread"
# %%
input()
