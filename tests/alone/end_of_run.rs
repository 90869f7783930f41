//! Drill: the last moment of a run. A program sends the word that ends its run, or forks while the agent reacts to it,
//! and leaves a process that tries to meet the next run of its session.
//!
//! Each attempt is a race, so the drill makes many of them, half on idle processors and half on busy ones.
//! `END_OF_RUN_ATTEMPTS` is the number of attempts for each way and each half, by default 20 (5 in the gate);
//! `END_OF_RUN_ATTEMPTS=500 cargo test -p llm-sandbox-tests --test alone end_of_run` makes 2,000 of either.

use std::{
    env,
    process::{Child, Command, Stdio},
};

use support::{On, Server, name, rounds, until};

use crate::alone;
use serde_json::{Value, json};

/// The beginning of each attempt's program. `survive` waits for a process that is not of its own run; if it meets one,
/// it leaves a mark and writes into its output. `known` is the set of processes at the start.
const PRELUDE: &str = r"
import ctypes, os, random, signal, socket, struct, time
libc = ctypes.CDLL(None)
links = []
for fd in map(int, os.listdir('/proc/self/fd')):
    try:
        if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:'): links.append(fd)
    except OSError: pass
if not links: raise SystemExit(3)
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=links[0])
word = struct.pack('=iQ', 0, 0)
def pids(): return {int(name) for name in os.listdir('/proc') if name.isdigit()}
known = pids()
def survive():
    end = time.monotonic() + 20
    known.add(os.getpid())
    while time.monotonic() < end:
        for pid in pids() - known:
            open('met', 'w').close()
            try:
                with open(f'/proc/{pid}/fd/1', 'w') as out: out.write('FORGED\n')
            except OSError: pass
    os._exit(0)
def spin():
    end = time.perf_counter_ns() + random.randrange(400_000)
    while time.perf_counter_ns() < end: pass
";

/// Ways to survive: each sends the word and forks after it, or while the agent reacts to it.
const WAYS: [(&str, &str); 4] = [
    ("a fork", "link.send(word)\nif os.fork() == 0: survive()"),
    ("a fork a little later", "link.send(word); spin()\nif os.fork() == 0: survive()"),
    // The child belongs to PID 1. The number of the system call clone depends on the machine.
    (
        "a sibling",
        "number = {'x86_64': 56}.get(os.uname().machine, 220)\nlink.send(word)\n\
         if libc.syscall(number, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0: survive()",
    ),
    // A timer continues the stopped program, which then forks.
    (
        "a timer",
        r"
class Event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_void_p), ('signal', ctypes.c_int), ('how', ctypes.c_int),
                ('rest', ctypes.c_char * 48)]
def again(*_):
    if os.fork() == 0: survive()
signal.signal(signal.SIGCONT, again)
event, timer = Event(None, signal.SIGCONT, 0, b''), ctypes.c_void_p()
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
after = random.randrange(100_000, 3_000_000)
link.send(word)
libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, after), None)",
    ),
];

const HONEST: &str = "import os
print('honest', os.path.exists('met'))
if os.path.exists('met'): os.remove('met')";

/// Exit code of a program without a link: it was not forked from the fork server.
const COLD: i64 = 3;

fn attempts() -> usize {
    let set = env::var("END_OF_RUN_ATTEMPTS").ok();
    set.map_or(rounds(5, 20), |set| set.parse().expect("END_OF_RUN_ATTEMPTS is a number"))
}

/// Makes the attempts; returns for each way how many met the next run.
async fn survivors(attempts: usize) -> Vec<(&'static str, usize)> {
    let (server, session) = (Server::start(On::Docker).await, name("end"));
    let mut met = vec![];
    for (way, act) in WAYS {
        let code = format!("{PRELUDE}{act}\nwhile True: time.sleep(1)");
        let mut count = 0;
        for _ in 0..attempts {
            until("an attempt from a process of the fork server's", async || {
                attempt(&server, &session, &code).await
            })
            .await;
            let run = server.run(&session, HONEST).await;
            count += usize::from(run["stdout"] != "honest False\n" || run["stderr"] != "");
        }
        met.push((way, count));
    }
    server.call("close_session", json!({ "session_id": session })).await.ok();
    met
}

/// Makes one attempt. Returns false if the program was started cold, so that it had no link to send the word on.
async fn attempt(server: &Server, session: &str, code: &str) -> bool {
    let run: Value = server.run(session, code).await;
    let exit_code = run["exit_code"].as_i64();
    assert!(matches!(exit_code, Some(0 | COLD)), "{run}");
    exit_code == Some(0)
}

/// A process that keeps a processor busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Self(command.spawn().expect("sh runs"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_of_a_run_meets_the_next_whatever_it_does_at_its_end() {
    let _alone = alone().await;
    let none: Vec<_> = WAYS.iter().map(|(way, _)| (*way, 0)).collect();
    assert_eq!(survivors(attempts()).await, none, "on processors with nothing else to do");
    let _busy = [Busy::start(), Busy::start()];
    assert_eq!(survivors(attempts()).await, none, "on busy ones");
}
