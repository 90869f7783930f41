# %%
!echo hello
# %%
!ls
# %%
files = !printf 'a\nb\n'
files
# %%
files.s, files.n, files[0]
# %%
name = "world"
!echo hello $name {name.upper()} $$HOME
# %%
!!echo captured
# %%
# differs: stdout: standard error is an output of its own here
# differs: stderr: standard error is an output of its own here
!echo out; echo err >&2
# %%
!exit 3
_exit_code
# %%
# differs: stdout: standard error is an output of its own here
# differs: stderr: standard error is an output of its own here
!no_such_program
# %%
print("before")
!echo between
print("after")
# %%
%system echo by magic
# %%
!cd /tmp && pwd
!pwd
# %%
get_ipython().system("echo by name")
# %%
text = get_ipython().getoutput("echo one; echo two")
text.fields(0), text.grep("one")
# %%
for n in range(2):
    !echo {n}
# %%
%sx echo by sx
# %%
!cat < /dev/null
# %%
# differs: stdout: there is no terminal
!test -t 1 && echo terminal || echo no terminal
# %%
# differs: result: the exit code is that of the command
bad = !echo err >&2; exit 2
bad, _exit_code
# %%
ls
# %%
!printf 'no line end'
print("!")
# %%
!seq 3 | while read n; do echo "n=$n"; done
