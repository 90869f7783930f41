//! Cells in the container: every way in which a cell can end, and the state of the workspace after it. The variables
//! are the right ones, or the answer says that they are lost; they are never others.

use std::time::Duration;

use backend::{Backend, Sandbox, Spec, docker::Docker};
use config::Config;
use link::{CellReply, Link, LinkError, LinkOwner, Opening, RunReply, RunRequest, Stream, Timing};
use protocol::message::{
    CellState::{self, Kept, Lost, RolledBack},
    End, FailureCode, Reset, RuntimeName,
};
use support::PATIENCE;
use tokio::time::timeout;

/// A sandbox, and the link that a session would have to it.
struct Bench {
    link: Link,
    owner: LinkOwner,
    sandbox: Sandbox,
}

/// The result of a cell.
struct Cell {
    reply: RunReply,
    stdout: String,
    stderr: String,
    result: String,
    left: CellReply,
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("in time")
}

impl Bench {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        if let Ok(image) = std::env::var("SANDBOX_IMAGE") {
            config.image = image;
        }
        change(&mut config);
        let session = support::name("cells").parse().expect("valid");
        let docker = Docker::new(&config.image, config.runtime.as_deref());
        let mut sandbox =
            soon(docker.start(Spec::new(&config, &session, &model::OwnSettings::default())))
                .await
                .expect("it starts");
        let reader = std::mem::replace(&mut sandbox.reader, Box::new(tokio::io::empty()));
        let writer = std::mem::replace(&mut sandbox.writer, Box::new(tokio::io::sink()));
        let (preload, undo) = (config.preload.clone(), Some(config.undo));
        let timing = Timing { silence: PATIENCE, ..Timing::default() };
        let opening = Opening { preload, undo, ..Opening::default() };
        let connected = soon(Link::connect(Stream { reader, writer }, timing, opening)).await;
        let (link, owner) = connected.expect("it answers");
        soon(link.warm()).await.expect("it is warm");
        Self { link, owner, sandbox }
    }

    /// Starts a bench with variables of many kinds.
    async fn with_state() -> Self {
        let bench = Self::start().await;
        bench.fill().await;
        bench
    }

    async fn fill(&self) {
        let cell = self.kept(STATE).await;
        assert!(cell.left.fresh && cell.left.count == 1);
    }

    fn request(code: &str, seconds: f64, cell: bool) -> RunRequest {
        RunRequest {
            runtime: RuntimeName::PYTHON,
            code: code.to_owned().into(),
            stdin: None,
            timeout: Duration::from_secs_f64(seconds),
            output_cap: 50_000,
            cell,
        }
    }

    async fn cell_for(&self, code: &str, seconds: f64) -> Cell {
        let running = self.link.run(Self::request(code, seconds, true)).await;
        Cell::new(soon(running.expect("it runs").finish()).await.expect("a reply"))
    }

    async fn cell(&self, code: &str) -> Cell {
        self.cell_for(code, 60.0).await
    }

    /// Runs a cell that must succeed and keep the variables.
    async fn kept(&self, code: &str) -> Cell {
        let cell = self.cell(code).await;
        assert_eq!(cell.reply.end, End::Exited { code: 0 }, "{}", cell.stderr);
        assert_eq!(cell.left.state, Kept);
        cell
    }

    async fn value(&self, code: &str) -> String {
        self.kept(code).await.result
    }

    /// Runs a program beside the cells.
    async fn program(&self, code: &str) -> RunReply {
        let running = self.link.run(Self::request(code, 60.0, false)).await.expect("it runs");
        soon(running.finish()).await.expect("a reply")
    }

    async fn reset(&self, undo: Option<u32>) -> Result<(u64, u32), LinkError> {
        let reset = Reset { runtime: RuntimeName::PYTHON, undo, files: false };
        soon(self.link.reset(&reset)).await.map(|done| (done.count, done.can_undo))
    }

    /// Checks that the variables are those that [`fill`](Self::fill) made, and that they work.
    async fn is_as_filled(&self) {
        assert_eq!(self.value(PROOF).await, "'as filled'");
    }

    async fn end(self) {
        drop(self.link);
        drop(self.owner);
        soon(self.sandbox.gone.clone()).await;
    }
}

impl Cell {
    fn new(reply: RunReply) -> Self {
        let text = |output: &link::CapturedOutput| {
            String::from_utf8_lossy(&[&output.head[..], &output.tail].concat()).into_owned()
        };
        let cell = reply.cell.clone().expect("it was a cell");
        let result = cell.result.as_ref().map_or_else(String::new, text);
        let (stdout, stderr) = (text(&reply.stdout), text(&reply.stderr));
        Self { reply, stdout, stderr, result, left: cell }
    }
}

/// Variables of many kinds.
const STATE: &str = r"
import asyncio, os, random, signal, sys, time, threading
import numpy as np, pandas as pd
random.seed(1); np.random.seed(2)
numbers = (n * n for n in range(1000)); next(numbers); next(numbers)
def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
step = counter(); step()
table = pd.DataFrame({'a': range(5)})
log = open('log.txt', 'w+'); log.write('one\n'); log.flush()
things = [1, 2]
await asyncio.sleep(0.001)
";

/// Code that changes all of them.
const MESS: &str = r"
next(numbers); step(); table.loc[0, 'a'] = 99; log.write('two'); log.flush(); things.append(3)
random.random(); np.random.rand(); asyncio.get_event_loop_policy()
print('messed', flush=True)
";

/// Code that uses all of them, and lists those that have changed.
const PROOF: &str = r"
await asyncio.sleep(0.001)
found = {
    'generator': next(numbers) == 4,
    'closure': step() == 2,
    'table': list(table.a) == [0, 1, 2, 3, 4],
    'file': log.tell() == 4,
    'list': things == [1, 2],
    'random': random.random() == random.Random(1).random(),
    'numpy': np.random.rand() == np.random.RandomState(2).rand(),
}
'as filled' if all(found.values()) else found
";

/// The end of a cell: its code, its time limit, and the expected end.
struct Case {
    code: &'static str,
    seconds: f64,
    end: fn(End) -> bool,
    /// The states that the variables may have.
    states: &'static [CellState],
}

const TIMED_OUT: Case =
    Case { code: "", seconds: 0.5, end: |end| end == End::TimedOut, states: &[RolledBack] };

const KILLED: Case = Case {
    code: "",
    seconds: 30.0,
    end: |end| end == End::Signaled { signal: 9 },
    states: &[RolledBack],
};

/// Makes a test of each case; the name of the test is the promise.
macro_rules! ends {
    ($($name:ident { $($case:tt)* })*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() { check(&Case { $($case)* }).await })*
    };
}

async fn check(case: &Case) {
    let bench = Bench::with_state().await;
    for round in 0..2 {
        let code = [MESS, case.code].concat();
        let cell = bench.cell_for(&code, case.seconds).await;
        assert!((case.end)(cell.reply.end), "{:?} {}", cell.reply.end, cell.stderr);
        assert!(case.states.contains(&cell.left.state), "{:?}", cell.left);
        assert!(cell.stdout.starts_with("messed"), "{}", cell.stdout);
        if cell.left.state == Lost {
            assert_eq!(cell.left.count, 0);
            // No variable seems to be there.
            assert!(bench.cell("things").await.stderr.contains("NameError"));
            bench.reset(None).await.expect("reset");
            bench.fill().await;
        } else {
            assert_eq!((cell.left.state, cell.left.count), (RolledBack, 1), "round {round}");
        }
    }
    bench.is_as_filled().await;
    bench.end().await;
}

ends! {
    an_endless_loop_is_rolled_back { code: "while True: pass", ..TIMED_OUT }

    a_sleep_is_rolled_back { code: "time.sleep(600)", ..TIMED_OUT }

    a_loop_in_c_is_rolled_back { code: "sum(range(10**12))", ..TIMED_OUT }

    a_regular_expression_that_never_ends_is_rolled_back {
        code: "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')", ..TIMED_OUT
    }

    ignoring_every_signal_does_not_help {
        code: r"
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
sum(range(10**12))",
        ..TIMED_OUT
    }

    a_cell_that_stops_itself_is_rolled_back {
        code: "os.kill(os.getpid(), signal.SIGSTOP)", ..TIMED_OUT
    }

    a_cell_that_closes_everything_is_rolled_back {
        code: "os.closerange(0, 1024)\nwhile True: pass", ..TIMED_OUT
    }

    a_fork_bomb_is_rolled_back {
        code: r"
while True:
    try: os.fork()
    except OSError: pass",
        seconds: 1.0, ..TIMED_OUT
    }

    an_exit_without_cleaning_up_is_rolled_back {
        code: "os._exit(3)", end: |end| end == End::Exited { code: 3 }, ..KILLED
    }

    a_crash_is_rolled_back {
        code: "import ctypes; ctypes.string_at(0)",
        end: |end| end == End::Signaled { signal: 11 }, ..KILLED
    }

    a_cell_that_kills_itself_is_rolled_back { code: "os.kill(os.getpid(), 9)", ..KILLED }

    a_cell_cannot_kill_its_parent {
        code: "os.kill(os.getppid(), 9); os.kill(os.getppid(), 15); os._exit(0)",
        end: |end| end == End::Exited { code: 0 }, ..KILLED
    }

    a_cell_that_kills_everything_loses_the_variables {
        code: "os.kill(-1, 9); os._exit(1)", end: |end| end == End::Exited { code: 1 },
        states: &[Lost], ..KILLED
    }

    a_cell_that_kills_its_copies_loses_the_variables {
        code: r"
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        try:
            if open(f'/proc/{name}/stat').read().rsplit(') ', 1)[1][0] == 'T': os.kill(int(name), 9)
        except OSError: pass
os._exit(1)",
        end: |end| end == End::Exited { code: 1 }, states: &[Lost], ..KILLED
    }

    a_memory_bomb_in_one_step_is_rolled_back {
        code: "bomb = b'x' * (3 << 30)",
        end: |end| end == End::OutOfMemory, states: &[RolledBack], ..KILLED
    }

    a_memory_bomb_in_small_steps_is_rolled_back {
        code: "bomb = []\nwhile True: bomb.append(b'x' * 100_000)",
        end: |end| end == End::OutOfMemory, states: &[RolledBack], ..KILLED
    }

    a_cell_whose_process_forked_is_rolled_back {
        code: "os.fork()\nos.fork()\nwhile True: pass", ..TIMED_OUT
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_is_what_it_is_in_a_notebook() {
    let bench = Bench::start().await;
    let first = bench.kept("x = 41").await;
    assert!(first.left.fresh && first.left.result.is_none());
    let second = bench.kept("print('hi')\nx + 1").await;
    assert_eq!((&*second.stdout, &*second.result), ("hi\n", "42"));
    assert_eq!((second.left.count, second.left.fresh, second.left.can_undo), (2, false, 2));
    assert!(second.left.memory_bytes > Some(1 << 20));
    let error = bench.cell("y = 5\ndef f():\n    return 1 / 0\nf()").await;
    assert_eq!((error.reply.end, error.left.state), (End::Exited { code: 1 }, Kept));
    assert!(error.stderr.contains("Cell In[3], line 4"), "{}", error.stderr);
    assert!(error.stderr.ends_with("ZeroDivisionError: division by zero\n"));
    let left = bench.cell("y += 1\nimport sys; sys.exit(7)").await;
    assert_eq!((left.reply.end, left.left.state), (End::Exited { code: 7 }, Kept));
    assert_eq!((&*left.stderr, &*left.stdout), ("", ""));
    assert_eq!(bench.value("y").await, "6");
    assert_eq!(bench.kept("!echo out; echo err >&2").await.stdout, "out\n");
    assert_eq!(bench.value("files = !echo a b\nfiles[0].split()").await, "['a', 'b']");
    assert_eq!(
        bench.value("import asyncio\nawait asyncio.sleep(0.01, 'waited')").await,
        "'waited'"
    );
    assert_eq!(bench.value("_, Out[2], get_ipython().execution_count").await, "('waited', 42, 10)");
    assert_eq!(bench.kept("display({'a': 1})\nprint('then')").await.stdout, "{'a': 1}\nthen\n");
    assert!(bench.kept("%time sum(range(10))").await.stdout.contains("Wall time"));
    for end in ["exit", "quit()", "exit(0)"] {
        assert_eq!(bench.kept(end).await.stderr, "");
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_reads_its_own_standard_input() {
    let bench = Bench::start().await;
    for name in ["ada", "bob"] {
        let mut request = Bench::request("a = input('who? ')\na, input()", 30.0, true);
        request.stdin = Some(format!("{name}\nsecond\nleft over\n").into());
        let running = bench.link.run(request).await.expect("it runs");
        let cell = Cell::new(soon(running.finish()).await.expect("a reply"));
        assert_eq!(cell.result, format!("('{name}', 'second')"), "{}", cell.stderr);
    }
    assert!(bench.cell("input()").await.stderr.contains("EOFError"));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_become_files_also_after_an_error() {
    let bench = Bench::start().await;
    let draw = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])";
    let names = |cell: &Cell| -> Vec<String> {
        cell.reply.changed.iter().map(|file| file.path.clone()).collect()
    };
    assert_eq!(names(&bench.kept(draw).await), ["figure_1.png"]);
    let shown = bench.kept(&format!("{draw}\nplt.show()\nplt.plot([3])\nplt.show()")).await;
    assert_eq!(names(&shown), ["figure_2.png", "figure_3.png"]);
    let failed = bench.cell(&format!("{draw}\n1 / 0")).await;
    assert_eq!((names(&failed), failed.left.state), (vec!["figure_4.png".to_owned()], Kept));
    assert_eq!(names(&bench.kept("1 + 1").await), Vec::<String>::new());
    let file =
        bench.kept("import pandas as pd\ndisplay(pd.DataFrame({'a': [1]}), to='file')").await;
    assert_eq!(names(&file), ["display_1.html"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_where_a_cell_stands_at_its_deadline_is_told() {
    let bench = Bench::start().await;
    bench.kept("def work():\n    while True: pass").await;
    let cell = bench.cell_for("x = 1\nwork()", 0.5).await;
    let position = cell.reply.facts.position.expect("it is known");
    assert_eq!((&*position.file, position.line, &*position.function), ("Cell In[1]", 2, "work"));
    let cell = bench.cell_for("x = 1\nwhile True:\n    pass", 0.5).await;
    let position = cell.reply.facts.position.expect("it is known");
    assert_eq!(position.file, "Cell In[2]");
    assert!(position.text.is_some());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_can_be_taken_back() {
    let bench = Bench::start().await;
    assert!(
        matches!(bench.reset(Some(1)).await, Err(LinkError::Refused(failure)) if failure.code == FailureCode::NothingToUndo)
    );
    assert_eq!(bench.reset(Some(0)).await.expect("nothing"), (0, 0));
    for number in 1..=8 {
        let cell = bench.kept(&format!("x = {number}\nx")).await;
        assert_eq!(
            (cell.left.count, cell.left.can_undo),
            (number, 5.min(u32::try_from(number).expect("small")))
        );
    }
    assert_eq!(bench.reset(Some(0)).await.expect("nothing"), (8, 5));
    assert!(bench.reset(Some(6)).await.is_err());
    assert_eq!(bench.value("x").await, "8");
    assert_eq!(bench.reset(Some(3)).await.expect("three"), (6, 2));
    assert_eq!(bench.value("x, len(In) - 1").await, "(6, 7)");
    assert_eq!(bench.reset(Some(2)).await.expect("two more"), (5, 1));
    assert_eq!(bench.value("x").await, "5");
    assert_eq!(bench.reset(None).await.expect("anew"), (0, 0));
    assert!(bench.cell("x").await.stderr.contains("NameError"));
    bench.kept("x = 1").await;
    assert_eq!(bench.reset(Some(2)).await.expect("to the start"), (0, 0));
    let cell = bench.cell("x").await;
    assert!(cell.left.fresh && cell.stderr.contains("NameError"));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_variables_are_told_without_running_code_of_theirs() {
    let bench = Bench::start().await;
    assert!(!soon(bench.link.inspect(RuntimeName::PYTHON)).await.expect("told").0.live);
    bench
        .kept(
            r"
import numpy as np, pandas as pd, os.path
from math import pi
class Rude:
    def __len__(self): raise SystemExit('no')
    __repr__ = __str__ = __len__
class List(list):
    __len__ = Rude.__len__
rude, rude_list = Rude(), List()
table, column, grid = pd.DataFrame({'a': range(1000), 'b': 1}), pd.Series([1, 2, 3]), np.ones((3, 4))
text, numbers, names, one, _hidden = 'x' * 10, [1, 2, 3], {'a': 1, 'b': 2}, 1, 2",
        )
        .await;
    let (done, contents) = soon(bench.link.inspect(RuntimeName::PYTHON)).await.expect("told");
    assert!(done.live && done.count == 1 && done.can_undo == 1);
    let told: Vec<_> =
        contents.variables.iter().map(|it| format!("{}: {}", it.name, it.summary)).collect();
    assert_eq!(
        told,
        [
            "pi: float",
            "Rude: type",
            "List: type",
            "rude: Rude",
            "rude_list: List",
            "table: DataFrame 1000x2",
            "column: Series 3",
            "grid: ndarray 3x4",
            "text: str 10",
            "numbers: list 3",
            "names: dict 2",
            "one: int",
        ]
    );
    assert_eq!(contents.imports, ["numpy", "os", "pandas"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_cell_has_started_ends_with_it_and_its_threads_do_not_come_back() {
    let bench = Bench::with_state().await;
    bench.kept("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])").await;
    assert_eq!(bench.value("child.wait()").await, "-9");
    let thread = r"
ticks = []
def tick():
    while True: ticks.append(1); time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()";
    bench.kept(thread).await;
    assert_eq!(bench.value("n = len(ticks); time.sleep(0.1); len(ticks) > n").await, "True");
    let cell = bench.cell("os._exit(1)").await;
    assert_eq!((cell.left.state, cell.left.lost_threads), (RolledBack, 1));
    assert_eq!(bench.value("threading.active_count()").await, "1");
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_that_changes_in_place_is_rolled_back_or_said_to_be_lost() {
    let bench = Bench::with_state().await;
    bench.kept("big = np.ones(25 << 20)").await;
    for _ in 0..3 {
        bench.kept("big += 1").await;
    }
    assert_eq!(bench.value("float(big.sum()) / (25 << 20)").await, "4.0");
    let cell = bench.cell("big += 1\nos._exit(1)").await;
    if cell.left.state == Lost {
        assert!(bench.cell("big").await.stderr.contains("NameError"));
    } else {
        assert_eq!(bench.value("float(big.sum()) / (25 << 20)").await, "4.0");
        bench.is_as_filled().await;
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_is_cancelled_at_any_moment_and_rolled_back() {
    let bench = Bench::with_state().await;
    for micros in [0, 50, 200, 1000, 3000, 10_000, 30_000, 100_000, 300_000] {
        let code = [MESS, "while True: step()"].concat();
        let running = bench.link.run(Bench::request(&code, 60.0, true)).await.expect("it runs");
        let number = running.call;
        // Any moment will do: this waits for nothing in particular.
        tokio::time::sleep(Duration::from_micros(micros)).await;
        soon(bench.link.kill(number)).await.expect("killed");
        let cell = Cell::new(soon(running.finish()).await.expect("a reply"));
        assert_eq!((cell.reply.end, cell.left.state), (End::Killed, RolledBack), "{micros}");
    }
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_workspace_runs_between_calls_and_a_program_beside_it_does_no_harm() {
    let bench = Bench::with_state().await;
    let kernel = bench.value("os.getpid()").await;
    let states = format!(
        "import os
def state(pid): return open(f'/proc/{{pid}}/stat').read().rsplit(') ', 1)[1][0]
others = [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in (1, os.getpid())]
print(state({kernel}), [state(pid) for pid in others].count('T'))
import signal
for pid in others:
    os.kill(int(pid), signal.SIGCONT)"
    );
    for _ in 0..2 {
        let reply = bench.program(&states).await;
        let stderr = String::from_utf8_lossy(&reply.stderr.head);
        assert_eq!(&reply.stdout.head[..], b"T 3\n", "{stderr}");
    }
    bench.program("import os; x = 1; os.fork()").await;
    // A program can kill the interpreter; the variables come back, or the next cell says that it is new.
    let kill = format!("import os, signal; os.kill({kernel}, signal.SIGKILL)");
    bench.program(&kill).await;
    bench.is_as_filled().await;
    bench.program("import os, signal; os.kill(-1, signal.SIGKILL)").await;
    let cell = bench.cell("things").await;
    assert!(
        cell.left.fresh && cell.stderr.contains("NameError"),
        "{:?} {}",
        cell.reply,
        cell.stderr
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_only_slow_keeps_its_variables() {
    let bench = Bench::with_state().await;
    // The fork for a copy of this interpreter takes longer than its limit.
    bench.kept("os.register_at_fork(before=lambda: time.sleep(1.2))").await;
    for _ in 0..2 {
        bench.program("print(1)").await;
        assert_eq!(bench.value("things").await, "[1, 2]");
    }
    let (done, _) = soon(bench.link.inspect(RuntimeName::PYTHON)).await.expect("told");
    assert!(done.live && done.count == 4);
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_in_almost_all_of_the_memory_is_there_for_the_next_cell() {
    let bench = Bench::start().await;
    assert!(!bench.kept("things = [1, 2]").await.left.at_risk);
    let fill = r"
from pathlib import Path
group = Path('/sys/fs/cgroup')
used, most = group / 'memory.current', group / 'memory.max'
if not used.exists():
    used, most = (group / 'memory' / f'memory.{name}_in_bytes' for name in ('usage', 'limit'))
big = []
while int(most.read_text()) - int(used.read_text()) > (32 << 20): big.append(b'x' * (2 << 20))";
    let crowded = bench.kept(fill).await;
    assert!(crowded.left.at_risk && !crowded.left.fresh);
    for count in 3..6 {
        bench.program("print(1)").await;
        let cell = bench.kept("things").await;
        assert_eq!((&*cell.result, cell.left.fresh, cell.left.count), ("[1, 2]", false, count));
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_main_thread_has_ended_ends_with_the_cell() {
    let bench = Bench::with_state().await;
    let code = r"
import ctypes
ready, written = os.pipe()
child = os.fork()
if child == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    os.write(written, b'.')
    ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)
os.read(ready, 1)
while open(f'/proc/{child}/stat').read().rsplit(') ', 1)[1][0] != 'Z': time.sleep(0.001)
len(os.listdir(f'/proc/{child}/task'))";
    assert_eq!(bench.value(code).await, "2");
    let left =
        "try: left = len(os.listdir(f'/proc/{child}/task'))\nexcept OSError: left = 0\nleft <= 1";
    assert_eq!(bench.value(left).await, "True");
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_starts_at_once_though_a_cell_has_stopped_what_it_starts_from() {
    let bench = Bench::with_state().await;
    let stop = r"
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) not in (1, os.getpid()): os.kill(int(name), signal.SIGSTOP)";
    for _ in 0..2 {
        bench.kept(stop).await;
        let reply = bench.program("print(1)").await;
        assert_eq!((reply.end, &reply.stdout.head[..]), (End::Exited { code: 0 }, &b"1\n"[..]));
    }
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hibernation_keeps_the_variables() {
    let bench = Bench::with_state().await;
    soon(bench.link.hibernate(false)).await.expect("it hibernates");
    let cell = bench.cell(&[MESS, "os._exit(1)"].concat()).await;
    assert_eq!(cell.left.state, RolledBack);
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fork_server_cells_are_the_same() {
    let bench = Bench::start_with(|config| config.preload = None).await;
    bench.fill().await;
    let cell = bench.cell(&[MESS, "os._exit(1)"].concat()).await;
    assert_eq!(cell.left.state, RolledBack);
    bench.is_as_filled().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_users_stands_for_a_library_in_cells_too() {
    let bench = Bench::start().await;
    bench.program("open('seaborn.py', 'w').write('mine = 1')").await;
    assert_eq!(bench.value("import seaborn\nseaborn.mine").await, "1");
    let cell = bench.cell("import os; os._exit(1)").await;
    assert_eq!(cell.left.state, RolledBack);
    assert_eq!(bench.value("seaborn.mine").await, "1");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_analysis_with_a_stop_at_every_fifth_cell_ends_as_one_without() {
    let (stopped, other) = (Bench::with_state().await, Bench::with_state().await);
    for bench in [&stopped, &other] {
        bench.kept("rows = pd.DataFrame({'n': np.arange(100.0)}); total = 0; seen = []").await;
    }
    for number in 0..200 {
        let code = match number % 4 {
            0 => format!("rows['c{}'] = rows.n * {number} + random.random()", number % 9),
            1 => format!("total += float(rows.sum().sum()) + step() + {number}"),
            2 => "seen.append((next(numbers), float(np.random.rand())))".to_owned(),
            _ => format!("log.write('line {number}\\n'); log.flush(); seen.append(log.tell())"),
        };
        if number % 5 == 0 {
            let end = ["os._exit(1)", "while True: pass", "import ctypes; ctypes.string_at(0)"];
            let bad = format!("{MESS}\n{code}\n{}", end[number / 5 % 3]);
            let cell = stopped.cell_for(&bad, 0.3).await;
            assert_eq!(cell.left.state, RolledBack, "{number}");
        }
        stopped.kept(&code).await;
        other.kept(&code).await;
    }
    let sum =
        "rows.to_csv(), total, seen, random.random(), float(np.random.rand()), step(), len(In)";
    assert_eq!(stopped.value(sum).await, other.value(sum).await);
    stopped.end().await;
    other.end().await;
}
