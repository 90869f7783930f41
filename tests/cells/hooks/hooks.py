# %%
import sys, atexit, signal, os, time
atexit.register(print, "at exit")
# %%
sys.excepthook = lambda *error: print("my hook", error[0])
1 / 0
# %%
shown = []
callable(sys.displayhook)
# %%
def handle(number, frame): print("signal", number)
signal.signal(signal.SIGUSR1, handle)
os.kill(os.getpid(), signal.SIGUSR1)
# %%
os.kill(os.getpid(), signal.SIGUSR1); "kept"
# %%
os.kill(os.getpid(), signal.SIGINT)
time.sleep(1)
# %%
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too long")))
signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(5)
# %%
get_ipython().events.register("post_run_cell", lambda result: print("ran", result.success))
# %%
2
# %%
sys.settrace(None); sys.setrecursionlimit(sys.getrecursionlimit())
# %%
from IPython.core.magic import register_line_magic, register_cell_magic
@register_line_magic
def shout(line): return line.upper()
%shout hello
# %%
@register_cell_magic
def lines(line, cell): return len(cell.splitlines())
# %%
%%lines
a
b
# %%
get_ipython().set_custom_exc((ZeroDivisionError,), lambda shell, kind, value, tb, tb_offset=None: print("custom", value))
1 / 0
# %%
get_ipython().run_cell("inner = 5\ninner").result
# %%
get_ipython().run_line_magic("pwd", "")
# %%
get_ipython().user_ns["inner"], get_ipython().ev("inner + 1")
# %%
get_ipython().ex("made = 1"); made
# %%
get_ipython().ast_node_interactivity = "all"
# %%
1
2
# %%
get_ipython().ast_node_interactivity = "last_expr_or_assign"
# %%
y = 6
# %%
# differs: stdout: the debugger looks for a file in which a cell is
breakpoint()
